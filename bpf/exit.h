/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * How a packet leaves a program other than by its action list: it is punted to userspace unchanged,
 * or dropped and counted. drop_reasons.h is generated from the list of crate `flow`.
 */
#pragma once

#include "drop_reasons.h"
#include "maps.h"
#include "parse.h"
#include "punt_queue.h"

static __always_inline struct weft_drop_key drop_key(__u32 port, __u32 reason)
{
	return (struct weft_drop_key) {
		.port_reason = (__u64)port << WEFT_DROP_PORT_SHIFT |
			       (reason & WEFT_DROP_REASON_MASK),
	};
}

/*
 * Counts a dropped packet that came in by `port`. When weft_drops is full, the drop counts for the
 * uplink, whose entries the daemon added in advance.
 */
__weak int count_drop(__u32 port, __u32 reason)
{
	struct weft_drop_key drop = drop_key(port, reason);
	__u64 *count = bpf_map_lookup_elem(&weft_drops, &drop);
	__u64 one = 1;

	if (!count) {
		if (!bpf_map_update_elem(&weft_drops, &drop, &one, 0))
			return TC_ACT_SHOT;
		drop = drop_key(weft_config.uplink_port, reason);
		count = bpf_map_lookup_elem(&weft_drops, &drop);
	}
	if (count)
		*count += 1;
	return TC_ACT_SHOT;
}

/*
 * Punts a frame that is too long for the header: helpers do not extend a packet without GSO beyond
 * SKB_MAX_ALLOC (four pages). Two VLAN tags need less room; they carry the ingress port instead
 * (see the end of intf.h).
 */
static __noinline int punt_tagged(struct __sk_buff *skb, __u32 port, __u32 ifindex)
{
	if (bpf_skb_vlan_push(skb, bpf_htons(ETHERTYPE_VLAN), port & 0xffff) ||
	    bpf_skb_vlan_push(skb, bpf_htons(ETHERTYPE_QINQ), port >> 16))
		return count_drop(port, DROP_HEADROOM);
	return bpf_redirect(ifindex, 0);
}

/*
 * Whether a daemon reads punted packets. Without one, programs forward packets that they would punt
 * only for a capture or to keep packets in order: otherwise those would be lost.
 */
__weak int has_daemon(void)
{
	__u32 first = 0;

	return bpf_map_lookup_elem(&weft_punt_device, &first) != 0;
}

/* Whether userspace would drop a packet for its tiny segments, and drops are not captured. */
static __always_inline bool is_refused(struct __sk_buff *skb, __u32 port)
{
	return skb->gso_size && port != weft_config.uplink_port && !weft_config.watch_drops &&
	       has_tiny_segments(skb, skb->gso_size);
}

_Static_assert(WEFT_PUNT_PORT_AT % 4 == 0 && WEFT_PUNT_TIME_AT % 4 == 0 &&
	       WEFT_PUNT_ETHERTYPE_AT % 4 == 0, "the punt header is written in words");

/*
 * Sends a packet to the user datapath, which runs it through its own lookup and actions. Drops a
 * packet that the user datapath would drop at once, unless drops are captured. Also drops a packet
 * if its port has too many in the queue.
 */
__weak int punt(struct __sk_buff *skb, __u32 port)
{
	__u32 first = 0, *found = bpf_map_lookup_elem(&weft_punt_device, &first), ifindex;
	__u64 now = bpf_ktime_get_ns();
	/* In words; the last is the EtherType and two bytes that are not stored. */
	__u32 header[(ETH_LEN + 3) / 4] = {
		[WEFT_PUNT_PORT_AT / 4] = bpf_htonl(port),
		[WEFT_PUNT_TIME_AT / 4] = now,
		[WEFT_PUNT_TIME_AT / 4 + 1] = now >> 32,
		[WEFT_PUNT_ETHERTYPE_AT / 4] = bpf_htonl((__u32)WEFT_PUNT_ETHERTYPE << 16),
	};

	if (!found)
		return count_drop(port, DROP_NO_DAEMON);
	if (is_refused(skb, port))
		return count_drop(port, DROP_TINY_SEGMENTS);
	if (!admit_to_punt_queue(skb, port, now))
		return count_drop(port, DROP_PUNT_QUEUE_FULL);
	ifindex = *found;
	if (bpf_skb_change_head(skb, ETH_LEN, 0))
		return punt_tagged(skb, port, ifindex);
	if (bpf_skb_store_bytes(skb, 0, header, ETH_LEN, 0))
		return count_drop(port, DROP_HEADROOM);
	return bpf_redirect(ifindex, 0);
}

/*
 * Takes `cost` tokens from a bucket. CPUs that do so at the same time may both add the same tokens.
 * The limit protects from a flooding guest and need not be exact.
 */
static __always_inline bool take_tokens(struct weft_token_bucket *bucket, __u64 period,
					__u64 burst, __u32 cost)
{
	__u64 now, at, fresh, tokens;

	if (!period || !bucket)
		return true;
	now = bpf_ktime_get_ns();
	at = *(volatile __u64 *)&bucket->at_ns;
	/* Another CPU may have stored a later time than this CPU read. */
	fresh = now > at ? (now - at) / period : 0;
	tokens = bucket->tokens + fresh;
	if (tokens >= burst) {
		tokens = burst;
		at = now;
	} else {
		at += fresh * period;
	}
	bucket->at_ns = at;
	if (tokens < cost) {
		bucket->tokens = tokens;
		return false;
	}
	bucket->tokens = tokens - cost;
	return true;
}

/* Takes tokens for a port's misses. */
static __always_inline bool has_tokens(__u32 port, __u32 cost)
{
	return take_tokens(bpf_map_lookup_elem(&weft_miss_limit, &port), weft_config.miss_ns,
			   weft_config.miss_burst, cost);
}

/* Takes tokens for a super-packet of short segments. */
__weak int has_segment_tokens(struct __sk_buff *skb, __u32 port)
{
	return take_tokens(bpf_map_lookup_elem(&weft_segment_limit, &port), weft_config.segment_ns,
			   weft_config.segment_burst, segment_count(skb));
}

/*
 * Punts a packet without a megaflow, unless its port misses too often. A super-packet costs one
 * token per segment.
 */
__weak int miss(struct __sk_buff *skb, __u32 port)
{
	if (!is_refused(skb, port) && !weft_config.watch_drops &&
	    !has_tokens(port, segment_count(skb)))
		return count_drop(port, DROP_UPCALL_QUEUE_FULL);
	return punt(skb, port);
}
