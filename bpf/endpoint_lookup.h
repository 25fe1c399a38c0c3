/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Finds the end point that sent a packet, by the packet's outer headers.
 *
 * weft_sources is a hash table with chaining by remote address, local address and carrier (address
 * family, IP protocol and port). Local address and carrier are in the class that many end points
 * share, so each end point needs memory only for its own address and its link in the chain.
 *
 * Only control.bpf.c changes chains. It modifies an entry only after it has unlinked the entry
 * and waited for an RCU grace period.
 */
#pragma once

#include "lookup.h"

/* What identifies a tunnel besides its addresses. `port` is in network order; GRE has port 0. */
static __always_inline __u32 carrier(bool is_ip6, __u8 proto, __u16 port)
{
	return (__u32)is_ip6 << WEFT_CARRIER_IP6_SHIFT |
	       (__u32)proto << WEFT_CARRIER_PROTO_SHIFT | port;
}

/*
 * The first end point of the hash chain for packets from `remote` to `local`. Both are in network
 * order.
 */
static __always_inline __u32 *source_chain(const __u32 *remote, const __u32 *local, __u32 carrier,
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

/* Whether the addresses and the carrier of a packet are those of this end point. */
static __always_inline bool endpoint_matches(const struct weft_endpoint *endpoint,
					     const struct weft_class *class, const __u32 *remote,
					     const __u32 *local, __u32 carrier, bool is_ip6)
{
	__u32 difference;

	difference = (endpoint->remote[0] ^ remote[0]) | (class->local[0] ^ local[0]) |
		     (class->carrier ^ carrier);
	if (is_ip6)
		difference |= (endpoint->remote[1] ^ remote[1]) | (class->local[1] ^ local[1]) |
			      (endpoint->remote[2] ^ remote[2]) | (class->local[2] ^ local[2]) |
			      (endpoint->remote[3] ^ remote[3]) | (class->local[3] ^ local[3]);
	return !difference;
}
