"""Operators on Python sources, found in the syntax tree: formulas, importers, catalogue rules and checkers.

Left alone: docstrings, annotations, decorators, sentences of errors, imports.
"""

import ast
from collections.abc import Iterator

from reports.strength import edit
from reports.strength.edit import Edit

_OPERATORS: dict[type, tuple[str, str]] = {
    ast.Add: ("+", "-"), ast.Sub: ("-", "+"), ast.Mult: ("*", "/"), ast.Div: ("/", "*"),
    ast.FloorDiv: ("//", "*"), ast.Mod: ("%", "//"), ast.LShift: ("<<", ">>"), ast.RShift: (">>", "<<"),
    ast.BitAnd: ("&", "|"), ast.BitOr: ("|", "&"), ast.Pow: ("**", "*"),
}  # fmt: skip
_COMPARES: dict[type, tuple[str, str, str]] = {
    ast.Lt: ("<", "<=", edit.COMPARE), ast.LtE: ("<=", "<", edit.COMPARE),
    ast.Gt: (">", ">=", edit.COMPARE), ast.GtE: (">=", ">", edit.COMPARE),
    ast.Eq: ("==", "!=", edit.CONDITION), ast.NotEq: ("!=", "==", edit.CONDITION),
    ast.In: ("in", "not in", edit.CONDITION), ast.NotIn: ("not in", "in", edit.CONDITION),
}  # fmt: skip
# limits are stated bounds on the compiler's report, not behaviour: a looser one is no fault that can be run
_KEYWORDS_LEFT = ("limits", "doc")
_NAMES_LEFT = ("LIMITS", "IN_REGISTERS")
_ORDERED = (ast.Sub, ast.Div, ast.MatMult, ast.FloorDiv, ast.Pow)


def python_edits(text: str) -> Iterator[Edit]:
    """Every edit that an operator makes of a Python text, in the order of the tree. Raises SyntaxError."""
    yield from _Finder(text).edits(ast.parse(text))


class _Finder:
    def __init__(self, text: str) -> None:
        self.text = text
        self.lines = text.splitlines(keepends=True)
        self.starts = [0]
        for line in self.lines:
            self.starts.append(self.starts[-1] + len(line))

    def span(self, node: ast.AST) -> tuple[int, int]:
        """Character positions of a node; the tree counts columns in UTF-8 bytes."""
        ends = []
        for row, column in ((node.lineno, node.col_offset), (node.end_lineno, node.end_col_offset)):  # type: ignore[attr-defined]  # only nodes with places come here
            ends.append(self.starts[row - 1] + len(self.lines[row - 1].encode()[:column].decode()))
        return ends[0], ends[1]

    def source(self, node: ast.AST) -> str:
        start, end = self.span(node)
        return self.text[start:end]

    def whole(self, node: ast.AST, fresh: str, kind: str) -> Edit:
        return Edit(*self.span(node), fresh, kind)

    def edits(self, node: ast.AST) -> Iterator[Edit]:
        if isinstance(node, ast.Call) and self.source(node.func).endswith(".reshape"):
            node.args = [a for a in node.args if self.source(a) != "-1"]  # any negative number means the same there
        yield from self.of(node)
        for name, child in ast.iter_fields(node):
            if name in ("annotation", "returns", "decorator_list", "bases", "keywords") and not isinstance(
                node, ast.Call
            ):
                continue
            if isinstance(node, ast.keyword) and node.arg in _KEYWORDS_LEFT:
                continue
            for part in child if isinstance(child, list) else [child]:
                if isinstance(part, ast.AST) and not _left_alone(part):
                    yield from self.edits(part)

    def of(self, node: ast.AST) -> Iterator[Edit]:
        """The edits of one node."""
        yield from self._of_operators(node)
        yield from self._of_shapes(node)

    def _of_operators(self, node: ast.AST) -> Iterator[Edit]:
        match node:
            case ast.BinOp():
                yield from self._binary(node)
            case ast.Compare(left=left, ops=[op], comparators=[right]) if type(op) in _COMPARES:
                old, new, kind = _COMPARES[type(op)]
                yield from self._between(left, right, old, new, kind)
            case ast.BoolOp(op=op, values=[first, second, *_]):
                old, new = ("and", "or") if isinstance(op, ast.And) else ("or", "and")
                yield from self._between(first, second, old, new, edit.CONDITION)
            case ast.UnaryOp(op=ast.Not(), operand=operand):
                yield self.whole(node, f"({self.source(operand)})", edit.CONDITION)
            case ast.UnaryOp(op=ast.USub(), operand=operand) if not isinstance(operand, ast.Constant):
                yield self.whole(node, f"({self.source(operand)})", edit.SIGN)
            case ast.Constant(value=bool()) | ast.Constant(value=str()):
                return
            case ast.Constant(value=int() as value):
                yield self.whole(node, str(value + 1), edit.CONSTANT)
            case ast.Constant(value=float() as value):
                yield self.whole(node, repr(value * 1.000001 if value else 1e-6), edit.CONSTANT)

    def _of_shapes(self, node: ast.AST) -> Iterator[Edit]:
        match node:
            case ast.If(test=test, body=[ast.Raise(), *_]):
                yield self.whole(test, "False", edit.GUARD)
            case ast.IfExp(test=test, body=body, orelse=orelse):
                swapped = f"{self.source(orelse)} if {self.source(test)} else {self.source(body)}"
                yield self.whole(node, swapped, edit.SELECTION)
            case ast.Assign(targets=[ast.Subscript()]) | ast.AugAssign(target=ast.Subscript()):
                yield self.whole(node, "pass", edit.WRITE)
            case ast.Attribute(value=value, attr="T"):
                yield self.whole(node, self.source(value), edit.TRANSPOSE)
            case ast.Slice(lower=lower, upper=upper):
                for bound in (lower, upper):
                    if bound is not None and not isinstance(bound, ast.Constant):
                        yield self.whole(bound, f"({self.source(bound)}) - 1", edit.SLICE)
            case ast.Call():
                yield from self._call(node)

    def _binary(self, node: ast.BinOp) -> Iterator[Edit]:
        kind = type(node.op)
        left, right = self.source(node.left), self.source(node.right)
        if isinstance(node.op, ast.Add) and right.split(".")[-1] in ("eps", "EPS", "epsilon"):
            yield self.whole(node, left, edit.EPSILON)
        if kind in _OPERATORS:
            yield from self._between(node.left, node.right, *_OPERATORS[kind], edit.SIGN)
        if kind in _ORDERED and left != right:
            middle = self.text[self.span(node.left)[1] : self.span(node.right)[0]].strip("() \n")
            yield self.whole(node, f"(({right}) {middle} ({left}))", edit.OPERANDS)

    def _call(self, node: ast.Call) -> Iterator[Edit]:
        name = self.source(node.func).split(".")[-1]
        if name == "fma" and len(node.args) == 3:
            a, b, c = map(self.source, node.args)
            yield self.whole(node, f"(({a}) * ({b}) + ({c}))", edit.FMA)
        if name == "rint" and len(node.args) == 1:
            yield self.whole(node.func, "(lambda value: np.floor(value + 0.5))", edit.TIE)
        if name in ("transpose", "swapaxes", "moveaxis"):
            first = node.func.value if isinstance(node.func, ast.Attribute) else None
            if first is not None and self.source(first) == "np" and node.args:
                first = node.args[0]  # np.transpose(x, ...), not x.transpose(...)
            if first is not None:
                yield self.whole(node, self.source(first), edit.TRANSPOSE)
        for keyword in node.keywords:
            if keyword.arg == "axis" and isinstance(keyword.value, ast.Constant | ast.UnaryOp):
                yield self.whole(keyword.value, "1" if self.source(keyword.value) == "0" else "0", edit.AXIS)

    def _between(self, left: ast.AST, right: ast.AST, old: str, new: str, kind: str) -> Iterator[Edit]:
        """Replace the operator between two operands."""
        start, end = self.span(left)[1], self.span(right)[0]
        at = self.text.find(old, start, end)
        if at >= 0:
            yield Edit(at, at + len(old), new, kind)


def _left_alone(node: ast.AST) -> bool:
    """Text for people, and what only a type checker reads."""
    docstring = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    if isinstance(node, ast.Assign | ast.AnnAssign):
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        return any(isinstance(t, ast.Name) and t.id in _NAMES_LEFT for t in targets)
    return docstring or isinstance(node, ast.Raise | ast.JoinedStr | ast.Import | ast.ImportFrom | ast.Assert)
