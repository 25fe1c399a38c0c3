/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Keeps the verifier's work small.
 *
 * The verifier follows every path through a program. Where paths join, it continues only once if it
 * knows the same about numbers and memory on all of them, and otherwise once for each. So the
 * programs make it forget facts that it does not need, and have fewer and shorter paths. They use:
 *
 *	- hide_bounds() and forget() below;
 *	- a number that is stored for later, and read from memory again. The verifier tracks
 *	  numbers in registers and in stack slots at multiples of 8, but neither in other places
 *	  of the stack, nor in maps that can be written. 0 is the exception: it tracks that
 *	  everywhere on the stack;
 *	- global functions (`__weak`): it checks each once, and not once per call;
 *	- short loop bodies: it checks a loop body once per iteration.
 */
#pragma once

#include "vmlinux.h"

#include <bpf/bpf_helpers.h>

/*
 * Makes the verifier forget all that it knows about a number, except that `mask` covers it. The
 * caller ensures that it does, so the value does not change. Without this, the verifier would
 * explore the rest of the program once for every value that it can tell apart.
 */
#define hide_bounds(number, mask)    \
	do {                         \
		barrier_var(number); \
		(number) &= (mask);  \
	} while (0)

/*
 * As hide_bounds(), but makes the verifier forget even a constant other than 0, and all earlier
 * comparisons. Costs a store, a load, and at most two instructions for the address of the slot.
 */
static __always_inline __u32 forget(__u32 number)
{
	struct {
		__u32 unused;
		volatile __u32 value;
	} slot __attribute__((aligned(8)));

	/* Keeps `value` in the second half of the slot, which the verifier does not track. */
	asm volatile("" : : "r"(&slot) : "memory");
	slot.value = number;
	return slot.value;
}

/*
 * Makes the compiler load a number from memory again, instead of using a copy in a register about
 * which the verifier knows more. If others can change the number, check this copy and not an
 * earlier one.
 */
#define read_again(place) (*(const volatile __typeof__(place) *)&(place))
