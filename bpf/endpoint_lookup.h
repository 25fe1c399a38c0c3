/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Finds the end point that sent a packet, by the packet's outer headers.
 *
 * weft_sources is a hash table with chaining. Its key is the remote address, the local address and
 * the carrier (address family, IP protocol and port). Local address and carrier are in the class
 * that many end points share, so each end point needs memory only for its own address and its link
 * in the chain.
 *
 * Only control.bpf.c changes chains. It writes to an entry only after the entry has been in no
 * chain for an RCU grace period.
 */
#pragma once

#include "key.h"
#include "lookup.h"

/*
 * The carrier of a tunnel: all that identifies it except its addresses. `port` is in network order;
 * GRE has port 0.
 */
static __always_inline __u32 carrier(bool is_ip6, __u8 proto, __u16 port)
{
	return (__u32)is_ip6 << WEFT_CARRIER_IP6_SHIFT |
	       (__u32)proto << WEFT_CARRIER_PROTO_SHIFT | port;
}

/* The head of the hash chain for packets from `remote` to `local`, both in network order. */
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

/* 0 if a packet with these addresses and this carrier is from the end point. */
static __always_inline __u64 diff_sender(const struct weft_endpoint *endpoint,
					 const struct weft_class *class, const __u32 *remote,
					 const __u32 *local, __u32 carrier, bool is_ip6)
{
	const any64 *remote6 = (const void *)remote, *local6 = (const void *)local;
	const any64 *from = (const void *)endpoint->remote, *to = (const void *)class->local;

	if (is_ip6)
		return (from[0] ^ remote6[0]) | (from[1] ^ remote6[1]) | (to[0] ^ local6[0]) |
		       (to[1] ^ local6[1]) | (class->carrier ^ carrier);
	return (endpoint->remote[0] ^ remote[0]) | (class->local[0] ^ local[0]) |
	       (class->carrier ^ carrier);
}
