/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Limits the packets of each port in the queue of punted packets, the queue of a TAP that all ports
 * share. A program admits a packet only if its port then stays within its limit, or has no packet
 * in the queue. So one port cannot fill the queue, and delays the packets of others only by that
 * limit.
 *
 * Userspace does not report individual packets. It publishes a time up to which it has read all
 * punted packets (weft_punt_clock). For each port, the programs keep the time of its last punted
 * packet and of an earlier one. When userspace has read the earlier one, the packets up to it no
 * longer count as waiting, and the last one takes its place. Packets after the earlier one may have
 * been read too, but still count. So a port may be able to use only half of its limit.
 */
#pragma once

#include "maps.h"

/*
 * The cost of a packet in units: one per 8 KiB or one per 16 segments, rounded up, whichever is
 * more.
 */
#define PUNT_UNIT_BYTES_SHIFT 13
#define PUNT_UNIT_SEGMENTS 16

/* Segments of a packet, as packet::segment_count in userspace. */
static __always_inline __u32 segment_count(struct __sk_buff *skb)
{
	__u32 size = skb->gso_size;

	return size ? (skb->len + size - 1) / size : 1;
}

/*
 * Whether a super-packet has many segments that are shorter than any stack sends, as
 * packet::has_tiny_segments in userspace.
 */
static __always_inline bool has_tiny_segments(struct __sk_buff *skb, __u32 gso_size)
{
	return gso_size < WEFT_LEAST_SEGMENT_LEN &&
	       skb->len > WEFT_SHORT_SEGMENTS * (gso_size + 1);
}

static __always_inline __u32 punt_cost(struct __sk_buff *skb)
{
	__u32 by_len = (skb->len + (1 << PUNT_UNIT_BYTES_SHIFT) - 1) >> PUNT_UNIT_BYTES_SHIFT;
	__u32 by_segments = (segment_count(skb) + PUNT_UNIT_SEGMENTS - 1) / PUNT_UNIT_SEGMENTS;

	return by_len > by_segments ? by_len : by_segments;
}

/* The most units that can be queued. `read_ns`: all packets punted until then have been read. */
static __always_inline __u32 waiting(struct weft_punt_queue *queue, __u64 read_ns)
{
	__u64 marked_ns = *(volatile __u64 *)&queue->marked_ns;
	__u32 punted = *(volatile __u32 *)&queue->punted;
	/* Read after `punted`, because add_waiting() on another CPU writes `last_ns` first. */
	__u64 last_ns = *(volatile __u64 *)&queue->last_ns;
	__s32 left;

	if (read_ns >= last_ns) {
		queue->read = punted;
		queue->marked = punted;
		queue->marked_ns = last_ns;
	} else if (read_ns >= marked_ns &&
		   marked_ns == __sync_val_compare_and_swap(&queue->marked_ns, marked_ns,
							    last_ns)) {
		/* Only one CPU gets here: a second one would use the new mark, not yet read. */
		queue->read = queue->marked;
		queue->marked = punted;
	}
	/* Negative if another CPU has advanced `read` in the meantime. */
	left = punted - *(volatile __u32 *)&queue->read;
	return left > 0 ? left : 0;
}

static __always_inline void add_waiting(struct weft_punt_queue *queue, __u32 cost, __u64 now)
{
	queue->last_ns = now;
	__sync_fetch_and_add(&queue->punted, cost);
}

/*
 * Admits a packet to the queue if its port is within its limit. A port can have at most as many
 * units in the queue as are still free. That is the only limit of the uplink, which carries packets
 * of many hosts. Two CPUs that do this at the same time may both take the last free units.
 */
__weak int admit_to_punt_queue(struct __sk_buff *skb, __u32 port, __u64 now)
{
	struct weft_punt_queue *all, *own;
	__u32 none = 0, limit = weft_config.punt_limit, size = weft_config.punt_queue_len;
	bool is_uplink = port == weft_config.uplink_port;
	__u32 cost, used, has;
	__u64 *clock, read_ns;

	clock = bpf_map_lookup_elem(&weft_punt_clock, &none);
	all = bpf_map_lookup_elem(&weft_punt_total, &none);
	if (!limit || !clock || !all)
		return true;
	read_ns = *(volatile __u64 *)clock;
	cost = punt_cost(skb);
	used = waiting(all, read_ns);
	if (used + cost > size)
		return false;
	own = bpf_map_lookup_elem(&weft_punt_queues, is_uplink ? &none : &port);
	if (own) {
		has = waiting(own, read_ns);
		if (limit > size - used || is_uplink)
			limit = size - used;
		/* A packet that costs more than the limit may wait alone. */
		if (has && has + cost > limit)
			return false;
		add_waiting(own, cost, now);
	}
	add_waiting(all, cost, now);
	if (read_ns == WEFT_PUNT_ALL_READ)
		__sync_val_compare_and_swap(clock, read_ns, now - 1);
	return true;
}
