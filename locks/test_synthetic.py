"""Synthetic weights: a device makes exactly the codes and scales that the oracle makes."""

import numpy as np
import pytest

from harness.device import Device
from harness.engine.generate import signed
from harness.run import run_kernel
from kernels.catalogue import kernel
from oracle import synthetic as truth
from oracle.bits.synthetic import synthetic
from oracle.config import preset
from oracle.errors import LanelockError
from oracle.weights import load
from oracle.weights.synthetic import key, scale_bits

KERNEL = kernel("synthetic")


def on_device(device: Device, code_key: int, scale_key: int, lowest: int, blocks: int) -> dict[str, np.ndarray]:
    """Codes and scales as a device makes them."""
    keys = {"code_key": signed(code_key), "scale_key": signed(scale_key)}
    return run_kernel(device, KERNEL, {**keys, "lowest_scale": lowest, "blocks": blocks}, {})


class TestSynthetic:
    """Codes and scales are a function of seed, name and index, in integers alone."""

    @pytest.mark.verify
    @pytest.mark.parametrize("blocks", [1, 255, 256, 257, 1000])
    def test_equals_the_contract(self, device: Device, blocks: int):
        """Every code and scale is the contract's (red: a shift, a factor or the counter's start changed)."""
        made = on_device(device, key(7, "a.codes"), key(7, "a.scales"), 5000, blocks)
        codes, scales = synthetic(key(7, "a.codes"), key(7, "a.scales"), 5000, blocks)
        assert np.array_equal(made["codes"], codes)
        assert np.array_equal(made["scales"].view(np.uint16), scales.view(np.uint16))

    def test_equals_single_elements_in_integers(self, device: Device):
        """Elements are those of Python's integers, which never wrap by accident (red: bytes read from the top)."""
        code_key, scale_key = key(1, "b.codes"), key(2**64 - 1, "b.scales")
        made = on_device(device, code_key, scale_key, 100, 40)
        assert made["codes"].ravel().tolist() == [truth.code(code_key, e) for e in range(40 * 32)]
        assert made["scales"].view(np.uint16).tolist() == [truth.scale_bits(scale_key, b, 100) for b in range(40)]

    def test_is_the_tensor_that_the_oracle_streams(self, device: Device):
        """A tensor of `synthetic:3` has these codes and scales (red: keys of another name)."""
        config = preset("tiny")
        tensor = load("synthetic:3", config).tensor("layers.0.gu")
        N, K = tensor.codes.shape
        names = (f"layers.0.gu.{part}" for part in ("codes", "scales"))
        lowest = int(scale_bits("layers.0.gu", K))
        made = on_device(device, *(key(3, name) for name in names), lowest, N * K // 32)
        assert np.array_equal(made["codes"].reshape(N, K), tensor.codes)
        assert np.array_equal(made["scales"].reshape(N, K // 32).view(np.uint16), tensor.scales.view(np.uint16))

    def test_never_makes_code_minus_128(self, device: Device):
        """The code that Q8_0 does not have is never made (red: -128 kept); 65,536 codes hold it about 256 times."""
        made = on_device(device, key(9, "c.codes"), key(9, "c.scales"), 1, 2048)
        assert made["codes"].min() == -127

    def test_same_bits_on_both_devices(self, both_devices: tuple[Device, Device]):
        """Host and GPU make the same bits."""
        host, cuda = (on_device(d, key(4, "d.codes"), key(4, "d.scales"), 900, 3000) for d in both_devices)
        assert all(np.array_equal(host[name].view(np.uint8), cuda[name].view(np.uint8)) for name in host)

    @pytest.mark.parametrize(("lowest", "blocks"), [(0, 1), (0x7C00 - 127, 1), (1, 0)])
    def test_refuses_what_it_cannot_make(self, device: Device, lowest: int, blocks: int):
        """A scale that could be infinite, or no block at all, is refused before any launch."""
        with pytest.raises(LanelockError):
            on_device(device, 1, 2, lowest, blocks)
