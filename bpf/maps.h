/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * The maps and variables that programs and daemon share.
 *
 *	weft_devices, weft_ports		the port of an interface; the interface of a port
 *	weft_cache, weft_flows, weft_buckets,
 *	weft_masks, weft_mask_lists, weft_grace	megaflow lookup, see lookup.h
 *	weft_actions				action lists of megaflows
 *	weft_endpoints, weft_classes		remote end points, and their shared properties
 *	weft_sources, weft_locals,
 *	weft_tag_links				lookup of end point or link by outer headers
 *	weft_flow_stats, weft_lookups,
 *	weft_port_stats, weft_uplink_stats,
 *	weft_drops				counters
 *	weft_miss_limit, weft_segment_limit	token buckets of each port's misses and short
 *						segments
 *	weft_punt_device			the TAP that punted packets are sent to
 *	weft_punt_queues, weft_punt_total,
 *	weft_punt_clock				limits of the packets queued there
 *	weft_config, mask_list_in_use		variables that may change at any time
 *	cache_shift, bucket_shift, source_shift,
 *	hash_factors, entropy_factors		constants, set before the programs are loaded
 *
 * All are weak symbols: each object that uses one defines it, and the linker merges them. The
 * daemon sets max_entries before it loads the object. The verifier demands a NULL check after each
 * lookup, even where the index comes from another map and the lookup cannot fail.
 */
#pragma once

#include "vmlinux.h"

#include <bpf/bpf_helpers.h>

#include "intf.h"

#define WEFT_FLOWS 1024
#define WEFT_CACHED 1024

/*
 * The exact-match cache, WEFT_CACHED_PER_PAGE entries in each element. The number of entries is a
 * power of two; `cache_shift` depends on it.
 */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__type(key, __u32);
	__type(value, struct weft_cache_page);
	__uint(max_entries, WEFT_CACHED);
} weft_cache __weak SEC(".maps");

/* Megaflows. Entry WEFT_NO_FLOW is never used. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__type(key, __u32);
	__type(value, struct weft_flow);
	__uint(max_entries, WEFT_FLOWS);
} weft_flows __weak SEC(".maps");

/* Counters of weft_flows, WEFT_FLOW_STATS_PER_PAGE in each element. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__type(key, __u32);
	__type(value, struct weft_flow_stats_page);
	__uint(max_entries, WEFT_FLOWS);
} weft_flow_stats __weak SEC(".maps");

/*
 * The first megaflow of each hash bucket. Its size is a power of two, at least 2; `bucket_shift`
 * depends on it.
 */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__type(key, __u32);
	__type(value, __u32);
	__uint(max_entries, WEFT_FLOWS);
} weft_buckets __weak SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__type(key, __u32);
	__type(value, struct weft_key);
	__uint(max_entries, WEFT_MAX_MASKS);
} weft_masks __weak SEC(".maps");

/* Two lists: the daemon writes one while lookups use the other. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__type(key, __u32);
	__type(value, struct weft_mask_list);
	__uint(max_entries, 2);
} weft_mask_lists __weak SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__type(key, __u32);
	__type(value, struct weft_lookup_stats);
	__uint(max_entries, 1);
} weft_lookups __weak SEC(".maps");

#define WEFT_LISTS 1024
#define WEFT_PORTS 1024
#define WEFT_CLASSES 64
#define WEFT_ENDPOINTS 1024
#define WEFT_LOCALS 1024
#define WEFT_LINKS 1024
#define WEFT_DROPS 16384

/* Entry WEFT_ACTIONS_PUNT is never read. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__type(key, __u32);
	__type(value, struct weft_action_list);
	__uint(max_entries, WEFT_LISTS);
} weft_actions __weak SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__type(key, __u32);
	__type(value, struct weft_port);
	__uint(max_entries, WEFT_PORTS);
} weft_ports __weak SEC(".maps");

/*
 * Counters of weft_ports. All CPUs share them, because the kernel would allocate each of the 65,536
 * elements of a per-CPU array separately, at each start of the daemon.
 */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__type(key, __u32);
	__type(value, struct weft_port_stats);
	__uint(max_entries, WEFT_PORTS);
} weft_port_stats __weak SEC(".maps");

/* The token buckets of each port: for misses, and for super-packets of short segments. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__type(key, __u32);
	__type(value, struct weft_token_bucket);
	__uint(max_entries, WEFT_PORTS);
} weft_miss_limit __weak SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__type(key, __u32);
	__type(value, struct weft_token_bucket);
	__uint(max_entries, WEFT_PORTS);
} weft_segment_limit __weak SEC(".maps");

/* The number of entries is fixed, because struct weft_device is hashed by 16 bits. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__type(key, __u32);
	__type(value, struct weft_device);
	__uint(max_entries, WEFT_DEVICES);
} weft_devices __weak SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__type(key, __u32);
	__type(value, struct weft_class);
	__uint(max_entries, WEFT_CLASSES);
} weft_classes __weak SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__type(key, __u32);
	__type(value, struct weft_endpoint);
	__uint(max_entries, WEFT_ENDPOINTS);
} weft_endpoints __weak SEC(".maps");

/*
 * Hash table of end points by remote and local address: the number + 1 of the first end point of
 * each bucket, or 0. Its size is a power of two, at least 2; `source_shift` depends on it.
 */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__type(key, __u32);
	__type(value, __u32);
	__uint(max_entries, WEFT_ENDPOINTS);
} weft_sources __weak SEC(".maps");

/* The local ends of tunnels. The values are enum weft_local_state. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__type(key, struct weft_local);
	__type(value, __u32);
	__uint(max_entries, WEFT_LOCALS);
} weft_locals __weak SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__type(key, struct weft_tag_link_key);
	__type(value, struct weft_tag_link);
	__uint(max_entries, WEFT_LINKS);
} weft_tag_links __weak SEC(".maps");

/*
 * The daemon adds the entries of the uplink in advance: count_drop() uses them if the map is full.
 */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_HASH);
	__type(key, struct weft_drop_key);
	__type(value, __u64);
	__uint(max_entries, WEFT_DROPS);
} weft_drops __weak SEC(".maps");

/* Counts tagged frames that programs received and sent by the uplink. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__type(key, __u32);
	__type(value, struct weft_port_stats);
	__uint(max_entries, 1);
} weft_uplink_stats __weak SEC(".maps");

/*
 * The TAP that punted packets are sent to; empty while no daemon runs. Programs outlive the daemon
 * and its TAP, and another device may get the TAP's ifindex. Hence the map type: the kernel removes
 * a device from a devmap when the device goes away.
 */
struct {
	__uint(type, BPF_MAP_TYPE_DEVMAP);
	__type(key, __u32);
	__type(value, __u32);
	__uint(max_entries, 1);
} weft_punt_device __weak SEC(".maps");

/* The state of each port's packets in the TAP's queue; entry 0: the uplink. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__type(key, __u32);
	__type(value, struct weft_punt_queue);
	__uint(max_entries, WEFT_PORTS);
} weft_punt_queues __weak SEC(".maps");

/* The state of all packets in the TAP's queue. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__type(key, __u32);
	__type(value, struct weft_punt_queue);
	__uint(max_entries, 1);
} weft_punt_total __weak SEC(".maps");

/*
 * The time (bpf_ktime_get_ns) up to which the daemon has read all punted packets. The daemon maps
 * this memory, so it needs no system call to write it.
 */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__type(key, __u32);
	__type(value, __u64);
	__uint(max_entries, 1);
} weft_punt_clock __weak SEC(".maps");

/*
 * Never read: the daemon updates it to wait for an RCU grace period. The update of a map of maps
 * returns only when all programs that were running at its beginning have ended
 * (maybe_wait_bpf_programs() in kernel/bpf/syscall.c).
 */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY_OF_MAPS);
	__type(key, __u32);
	__type(value, __u32);
	__uint(max_entries, 1);
	__array(values, struct {
		__uint(type, BPF_MAP_TYPE_ARRAY);
		__type(key, __u32);
		__type(value, __u32);
		__uint(max_entries, 1);
	});
} weft_grace __weak SEC(".maps");

/* Index in weft_mask_lists of the list that lookups use, 0 or 1. */
__u32 mask_list_in_use __weak = 0;

struct weft_config weft_config __weak = {};

/* Shifts that reduce a 64-bit hash to an index. Set before loading, then constant. */
const volatile __u32 cache_shift __weak = 54;
const volatile __u32 bucket_shift __weak = 54;
const volatile __u32 source_shift __weak = 54;
/*
 * Random odd numbers. They are secret, so that a sender cannot choose hash collisions. The last two
 * are for the index of the mask and for the final mixing step.
 */
const volatile __u64 hash_factors[WEFT_KEY_WORDS + 2] __weak = {};
/* Also random, odd and secret; see encap.h. */
const volatile __u64 entropy_factors[WEFT_ENTROPY_FACTORS] __weak = {};
