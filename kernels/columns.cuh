// Activations by columns: where a piece of K is one piece of memory for all rows, and where a fragment's scales lie together.
//
// Codes are [K / 16][WORDS][rows][16], scales [K / 32][rows to a multiple of 16], permuted among 16 rows.
#pragma once
#include "device.cuh"

namespace lane {

// scales of a block, of so many rows
__device__ inline int scale_rows(int rows) { return (rows + 15) / 16 * 16; }

// Where the scale of row r lies among those of its block: a lane's four of two fragments of 8 columns side by side.
__device__ inline int place_of_scale(int r) { return r / 16 * 16 + r % 8 / 2 * 4 + r % 16 / 8 * 2 + r % 2; }

}  // namespace lane
