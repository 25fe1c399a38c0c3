/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * From the outer headers of a packet to the end point that has sent it. End points of one hash are a
 * chain; what they share, their class says, so that each takes no more than its own address and a
 * link of the chain. Only control.bpf.c writes chains, as it does those of lookup.h: an entry is
 * written to only when no chain has led to it for a grace period.
 */
#pragma once

#include "lookup.h"

/* More end points of one hash are not found: the user datapath takes what they send. */
#define MAX_SOURCES 16

/* Beside the addresses; 0 for the port of GRE. */
static __always_inline __u32 carrier(bool is_ip6, __u8 proto, __u16 port)
{
	return (__u32)is_ip6 << WEFT_CARRIER_IP6_SHIFT |
	       (__u32)proto << WEFT_CARRIER_PROTO_SHIFT | port;
}

/* The chain of those that send from one address to another, as they are on the wire. */
static __always_inline __u32 *sources_of(const __u32 *remote, const __u32 *local, __u32 carrier,
					 bool is_ip6)
{
	__u64 sum = carrier * hash_factors[4];
	__u32 bucket;

	sum += ((__u64)remote[0] << 32 | local[0]) * hash_factors[0];
	if (is_ip6) {
		sum += ((__u64)remote[1] << 32 | local[1]) * hash_factors[1];
		sum += ((__u64)remote[2] << 32 | local[2]) * hash_factors[2];
		sum += ((__u64)remote[3] << 32 | local[3]) * hash_factors[3];
	}
	bucket = hash_index(sum, source_shift);
	return bpf_map_lookup_elem(&weft_sources, &bucket);
}

static __always_inline bool is_from(const struct weft_endpoint *endpoint,
				    const struct weft_class *class, const __u32 *remote,
				    const __u32 *local, __u32 carrier, bool is_ip6)
{
	__u32 bits;

	bits = (endpoint->remote[0] ^ remote[0]) | (class->local[0] ^ local[0]) |
	       (class->carrier ^ carrier);
	if (is_ip6)
		bits |= (endpoint->remote[1] ^ remote[1]) | (class->local[1] ^ local[1]) |
			(endpoint->remote[2] ^ remote[2]) | (class->local[2] ^ local[2]) |
			(endpoint->remote[3] ^ remote[3]) | (class->local[3] ^ local[3]);
	return !bits;
}
