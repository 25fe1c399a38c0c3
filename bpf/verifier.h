/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Keeps the verifier's work small.
 *
 * The verifier follows every path through a program. Where paths join, it goes on once for all of
 * them if what it knows about numbers and memory is the same, and otherwise once for each. So code
 * here and elsewhere makes it forget what it need not know, and gives it less to follow:
 *
 *	- hide_bounds() and forget() below;
 *	- a number that is stored for later, and read from memory again. The verifier tracks
 *	  numbers in registers and in stack slots at multiples of 8, but neither in other places
 *	  of the stack, nor in maps that can be written. 0 is the exception: it tracks that
 *	  everywhere on the stack;
 *	- global functions (`__weak`): it checks each once, and not once per call;
 *	- loops with little in them: it goes through a loop once per round.
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
 * comparisons. Takes a store and a load, and at most two instructions for the address of the slot.
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
 * Makes the compiler load a number again. It may have a copy about which the verifier knows more.
 * If others can change the number, check this copy and no earlier one.
 */
#define read_again(place) (*(const volatile __typeof__(place) *)&(place))
