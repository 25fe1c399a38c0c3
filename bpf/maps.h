/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * The tables that programs and userspace share:
 *
 *	weft_devices, weft_ports		which port a device is, and how frames leave by it
 *	weft_cache, weft_flows, weft_buckets,
 *	weft_masks, weft_mask_lists, weft_grace	the lookup, see lookup.h
 *	weft_actions				what is done with the packets of a megaflow
 *	weft_endpoints, weft_classes		remote end points, by number, and what they share
 *	weft_sources, weft_gre_locals, weft_tag_links	from outer headers to an end point or a logical link
 *	weft_flow_stats, weft_lookups, weft_port_stats,
 *	weft_uplink_stats, weft_drops		counters
 *	weft_miss_limit				the token buckets of misses, by port
 *	weft_punt_device				the TAP by which packets are handed over
 *	weft_config, mask_list_in_use		variables that may change at any time
 *	cache_shift, bucket_shift, source_shift,
 *	hash_factors, entropy_factors		constants, set before loading
 *
 * Weak, so that every program that uses them has them and they are one when
 * linked; userspace sets the sizes before it loads them. Whatever is found by an index from another
 * table is looked up with a check that the verifier demands and that never fails.
 */
#pragma once

#include "vmlinux.h"

#include <bpf/bpf_helpers.h>

#include "intf.h"

#define WEFT_FLOWS 1024
#define WEFT_CACHED 1024

/* The exact-match cache. A power of two, 2 at least, of which `cache_shift` knows. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__type(key, __u32);
	__type(value, struct weft_cache_entry);
	__uint(max_entries, WEFT_CACHED);
} weft_cache __weak SEC(".maps");

/* Megaflows, and one place that is none. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__type(key, __u32);
	__type(value, struct weft_flow);
	__uint(max_entries, WEFT_FLOWS);
} weft_flows __weak SEC(".maps");

/* As many, in pages. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__type(key, __u32);
	__type(value, struct weft_flow_stats_page);
	__uint(max_entries, WEFT_FLOWS);
} weft_flow_stats __weak SEC(".maps");

/* The first megaflow of each chain. A power of two, 2 at least, of which `bucket_shift` knows. */
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

/* Two lists: while one is in use, the other may be written. */
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
#define WEFT_GRE_LOCALS 1024
#define WEFT_LINKS 1024
#define WEFT_DROPS 16384

/* By their numbers; the first, WEFT_ACTIONS_PUNT, is never read. */
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

/* As many. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__type(key, __u32);
	__type(value, struct weft_port_stats);
	__uint(max_entries, WEFT_PORTS);
} weft_port_stats __weak SEC(".maps");

/* As many. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__type(key, __u32);
	__type(value, struct weft_token_bucket);
	__uint(max_entries, WEFT_PORTS);
} weft_miss_limit __weak SEC(".maps");

/* Always as many. */
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
 * By the hash of where packets come from and to, the number of the first end point, plus 1; 0: none. A
 * power of two, 2 at least, of which `source_shift` knows.
 */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__type(key, __u32);
	__type(value, __u32);
	__uint(max_entries, WEFT_ENDPOINTS);
} weft_sources __weak SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__type(key, struct weft_gre_local);
	__type(value, __u32);
	__uint(max_entries, WEFT_GRE_LOCALS);
} weft_gre_locals __weak SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__type(key, struct weft_tag_link_key);
	__type(value, struct weft_tag_link);
	__uint(max_entries, WEFT_LINKS);
} weft_tag_links __weak SEC(".maps");

/* Userspace puts in those of the uplink, see count_drop(). */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_HASH);
	__type(key, struct weft_drop_key);
	__type(value, __u64);
	__uint(max_entries, WEFT_DROPS);
} weft_drops __weak SEC(".maps");

/* Of tagged frames that programs have received and sent by the uplink. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__type(key, __u32);
	__type(value, struct weft_port_stats);
	__uint(max_entries, 1);
} weft_uplink_stats __weak SEC(".maps");

/*
 * The index of the TAP by which packets are handed over; nothing when nobody reads. Programs outlive
 * the daemon, whose TAP goes with it, and its index may become that of another device: from a map of
 * this type the kernel takes a device out when it goes.
 */
struct {
	__uint(type, BPF_MAP_TYPE_DEVMAP);
	__type(key, __u32);
	__type(value, __u32);
	__uint(max_entries, 1);
} weft_punt_device __weak SEC(".maps");

/*
 * Never read. An update of a map of maps returns when no program runs any more that ran when it
 * began (maybe_wait_bpf_programs() in kernel/bpf/syscall.c): that is how userspace waits for a
 * grace period.
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

/* The list in use, 0 or 1. */
__u32 mask_list_in_use __weak = 0;

struct weft_config weft_config __weak = {};

/* Set before loading, and constants from then on. */
const volatile __u32 cache_shift __weak = 54;
const volatile __u32 bucket_shift __weak = 54;
const volatile __u32 source_shift __weak = 54;
/*
 * Odd and secret: whoever sends frames must not be able to choose their places. The last two are
 * for the number of the mask and for the sum.
 */
const volatile __u64 hash_factors[WEFT_KEY_WORDS + 2] __weak = {};
/* Odd and secret as well; see encap.h. */
const volatile __u64 entropy_factors[6] __weak = {};
