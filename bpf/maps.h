/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * The tables of a lookup. Weak, so that every program that uses them has them and they are one when
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
	__type(value, struct weft_cached);
	__uint(max_entries, WEFT_CACHED);
} weft_cache __weak SEC(".maps");

/* Megaflows, and one place that is none. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__type(key, __u32);
	__type(value, struct weft_flow);
	__uint(max_entries, WEFT_FLOWS);
} weft_flows __weak SEC(".maps");

/* As many. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__type(key, __u32);
	__type(value, struct weft_served);
	__uint(max_entries, WEFT_FLOWS);
} weft_served __weak SEC(".maps");

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
	__type(value, struct weft_lookups);
	__uint(max_entries, 1);
} weft_lookups __weak SEC(".maps");

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

/* Set before loading, and constants from then on. */
const volatile __u32 cache_shift __weak = 54;
const volatile __u32 bucket_shift __weak = 54;
/*
 * Odd and secret: whoever sends frames must not be able to choose their places. The last two are
 * for the number of the mask and for the sum.
 */
const volatile __u64 hash_factors[WEFT_KEY_WORDS + 2] __weak = {};
