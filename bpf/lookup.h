/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Finds the megaflow of a key: in a per-CPU exact-match cache, or else by tuple-space search. The
 * search tries a list of masks. For each it hashes the masked key and walks the bucket's chain.
 *
 * Only control.bpf.c writes megaflows, one writer at a time. Programs run in an RCU read-side
 * critical section, and an entry is written only after it has been in no chain for a grace period.
 * So a megaflow does not change while a program uses it. A cache entry may outlive its megaflow.
 * Therefore each use of a megaflow entry has a unique generation, and a cached generation that
 * differs is a miss.
 *
 * A generation below `least_generation` in struct weft_config is a miss, too. So the daemon can
 * invalidate any number of megaflows with one write.
 *
 * Key words outside the frame's shape are 0 and would add nothing to a hash, so they are skipped.
 */
#pragma once

#include "maps.h"
#include "verifier.h"

struct masks_walk {
	const struct weft_key *key;
	const struct weft_mask_list *list;
	/* 64 bits wide: the verifier tracks such a variable as a number, a smaller one as bytes. */
	__u64 found;		/* number of the megaflow, or WEFT_NO_FLOW */
};

/* Vector multiply-shift hash of the masked key words `first` to `last`. */
static __always_inline __u64 hash_words_masked(const __u64 *key, const __u64 *mask, int first,
					       int last)
{
	__u64 sum = 0;
	int i;

#pragma clang loop unroll(full)
	for (i = first; i <= last; i++)
		sum += (key[i] & mask[i]) * hash_factors[i];
	return sum;
}

static __always_inline __u64 hash_words(const __u64 *key, int first, int last)
{
	__u64 sum = 0;
	int i;

#pragma clang loop unroll(full)
	for (i = first; i <= last; i++)
		sum += key[i] * hash_factors[i];
	return sum;
}

/* 0 if the masked words `first` to `last` of `key` are those of `other`. */
static __always_inline __u64 diff_words_masked(const __u64 *key, const __u64 *mask,
					       const __u64 *other, int first, int last)
{
	__u64 bits = 0;
	int i;

#pragma clang loop unroll(full)
	for (i = first; i <= last; i++)
		bits |= (key[i] & mask[i]) ^ other[i];
	return bits;
}

static __always_inline __u64 diff_words(const __u64 *key, const __u64 *other, int first, int last)
{
	__u64 bits = 0;
	int i;

#pragma clang loop unroll(full)
	for (i = first; i <= last; i++)
		bits |= key[i] ^ other[i];
	return bits;
}

/* Copies the words `first` to `last`. Returns 0, because OVER_SECTIONS needs a result. */
static __always_inline __u64 copy_words(const __u64 *from, __u64 *to, int first, int last)
{
	int i;

#pragma clang loop unroll(full)
	for (i = first; i <= last; i++)
		to[i] = from[i];
	return 0;
}

#define WORD(member) (__builtin_offsetof(struct weft_key, member) / sizeof(__u64))
#define BASE_FIRST WORD(port)
#define BASE_LAST WORD(l3[0])
#define L3_FIRST WORD(l3[1])
#define L3_LAST WORD(l3[3])
#define ND_FIRST WORD(nd[0])
#define ND_LAST WORD(nd[2])
#define TUNNEL_FIRST WORD(tun_id)
#define TUNNEL_LAST WORD(tun_addr[0])
#define TUNNEL6_FIRST WORD(tun_addr[1])
#define TUNNEL6_LAST WORD(tun_addr[3])

/*
 * Applies `function` to each section that a key of `shape` has, and combines the results with `op`.
 * WEFT_ND implies WEFT_L3_LONG: neighbour discovery is IPv6.
 */
#define OVER_SECTIONS(shape, op, result, function, ...)                                \
	do {                                                                           \
		result = function(__VA_ARGS__, BASE_FIRST, BASE_LAST);                 \
		if ((shape) & WEFT_L3_LONG) {                                          \
			result op function(__VA_ARGS__, L3_FIRST, L3_LAST);            \
			if ((shape) & WEFT_ND)                                         \
				result op function(__VA_ARGS__, ND_FIRST, ND_LAST);    \
		}                                                                      \
		if ((shape) & WEFT_TUNNEL) {                                           \
			result op function(__VA_ARGS__, TUNNEL_FIRST, TUNNEL_LAST);    \
			if ((shape) & WEFT_TUNNEL6)                                    \
				result op function(__VA_ARGS__, TUNNEL6_FIRST,         \
						   TUNNEL6_LAST);                      \
		}                                                                      \
	} while (0)

static __always_inline const __u64 *key_words(const struct weft_key *key)
{
	return (const __u64 *)key;
}

/*
 * Mixes a multiply-shift sum into an index. The sum is linear, so consecutive ports or addresses
 * could collide. One round of mixing leaves that weakness for values that differ only in their
 * highest bits; two rounds do not.
 */
static __always_inline __u32 hash_index(__u64 sum, __u32 shift)
{
	__u64 factor = hash_factors[WEFT_KEY_WORDS + 1];

	sum = (sum ^ sum >> 32) * factor;
	return (sum ^ sum >> 32) * factor >> shift;
}

/*
 * The mask's index is part of the hash, so that equal keys with different masks get different
 * buckets.
 */
static __always_inline __u32 bucket_at(__u64 sum, __u32 mask)
{
	return hash_index(sum + mask * hash_factors[WEFT_KEY_WORDS], bucket_shift);
}

static __always_inline struct weft_flow *flow_at(__u32 number)
{
	return bpf_map_lookup_elem(&weft_flows, &number);
}

/* Whether the daemon made or confirmed a megaflow of this generation under its current program. */
static __always_inline bool is_in_force(__u64 generation)
{
	return generation >= *(volatile __u64 *)&weft_config.least_generation;
}

/*
 * Whether the keys differ in sections that are rare: neighbour discovery and the tunnel. It is a
 * global function, because the verifier checks it once, but the loop body of try_mask() once per
 * iteration.
 */
__weak int rare_sections_differ(const struct weft_key *key, const struct weft_key *mask,
				const struct weft_key *other)
{
	__u64 bits = 0;

	if (!key || !mask || !other)
		return true;
#define DIFF(section)                                                             \
	diff_words_masked(key_words(key), key_words(mask), key_words(other), section##_FIRST, \
			  section##_LAST)
	if (key->port & WEFT_ND)
		bits |= DIFF(ND);
	if (key->port & WEFT_TUNNEL)
		bits |= DIFF(TUNNEL);
	if (key->port & WEFT_TUNNEL6)
		bits |= DIFF(TUNNEL6);
#undef DIFF
	return bits != 0;
}

/* Whether the masked key equals that of `flow`, and `flow` has no section that the key lacks. */
static __always_inline bool flow_matches(const struct weft_flow *flow, const struct weft_key *key,
					 const struct weft_key *mask, __u32 number)
{
	__u64 bits;

	if (flow->mask != number || flow->sections & ~key->port || !is_in_force(flow->generation))
		return false;
	bits = diff_words_masked(key_words(key), key_words(mask), key_words(&flow->key), BASE_FIRST,
				 BASE_LAST);
	if (key->port & WEFT_L3_LONG)
		bits |= diff_words_masked(key_words(key), key_words(mask), key_words(&flow->key),
					  L3_FIRST, L3_LAST);
	if (bits)
		return false;
	return !(key->port & (WEFT_ND | WEFT_TUNNEL)) ||
	       !rare_sections_differ(key, mask, &flow->key);
}

static long try_mask(__u32 index, struct masks_walk *walk)
{
	const struct weft_key *key = walk->key, *mask;
	struct weft_flow *flow;
	__u32 bucket, number, at, *first;
	__u64 sum;
	int i;

	if (index >= WEFT_MAX_MASKS)
		return 1;
	number = walk->list->order[index];
	mask = bpf_map_lookup_elem(&weft_masks, &number);
	if (!mask)
		return 1;
	OVER_SECTIONS(key->port, +=, sum, hash_words_masked, key_words(key), key_words(mask));
	bucket = bucket_at(sum, number);
	first = bpf_map_lookup_elem(&weft_buckets, &bucket);
	if (!first)
		return 1;
	at = *first;
	for (i = 0; i < WEFT_MAX_CHAIN && at != WEFT_NO_FLOW; i++) {
		flow = flow_at(at);
		if (!flow)
			return 1;
		if (flow_matches(flow, key, mask, number)) {
			walk->found = at;
			return 1;
		}
		at = flow->next;
	}
	return 0;
}

_Static_assert(WEFT_NO_FLOW == 0, "search() tests and computes it");

/* Tuple-space search without the cache: the number of the megaflow found, or WEFT_NO_FLOW. */
static __noinline __u32 search(const struct weft_key *key)
{
	struct masks_walk walk = { .key = key };
	struct weft_lookup_stats *counters;
	__u32 list = mask_list_in_use & 1, none = 0;
	long tried;

	walk.list = bpf_map_lookup_elem(&weft_mask_lists, &list);
	if (!walk.list)
		return WEFT_NO_FLOW;
	/*
	 * WEFT_NO_FLOW, which the verifier must not know: it would verify try_mask() once for this
	 * number, and again for others.
	 */
	walk.found = forget(1) ^ 1;
	tried = bpf_loop(walk.list->count, try_mask, &walk, 0);
	counters = bpf_map_lookup_elem(&weft_lookups, &none);
	if (!counters)
		return WEFT_NO_FLOW;
	counters->masks += tried;
	if (walk.found)
		counters->hits++;
	else
		counters->misses++;
	return walk.found;
}

static __always_inline bool is_cached(const struct weft_cache_entry *cached,
				      const struct weft_key *key, __u64 shape)
{
	__u64 bits;

	OVER_SECTIONS(shape, |=, bits, diff_words, key_words(key), key_words(&cached->key));
	return !bits;
}

/*
 * Searches and caches the result. No other program runs on this CPU, so the write is safe. It is a
 * global function, because the verifier checks a global function only once, not once per call.
 */
__weak __u32 search_and_cache(const struct weft_key *key, struct weft_cache_entry *cached)
{
	struct weft_flow *flow;
	__u64 generation, none;
	__u32 number;

	if (!key || !cached)
		return WEFT_NO_FLOW;
	number = search(key);
	flow = flow_at(number);
	if (number == WEFT_NO_FLOW || !flow)
		return WEFT_NO_FLOW;
	generation = *(volatile __u64 *)&flow->generation;
	/* 0: deleted in the meantime. A cache entry with 0 would match any deleted megaflow. */
	if (!generation)
		return number;
	/*
	 * Not cached: later the daemon may add a fused megaflow for this key, which replaces all
	 * passes of a connection's packets.
	 */
	if (flow->list == WEFT_ACTIONS_PUNT)
		return number;
	OVER_SECTIONS(key->port, |=, none, copy_words, key_words(key), (__u64 *)&cached->key);
	(void)none;
	cached->flow = number;
	cached->generation = generation;
	return number;
}

/*
 * The shape of a key. `tunnelled`: the frame came from a tunnel, which each program knows at
 * compile time. Otherwise the tunnel words are not compared. The port word is read again each time.
 * If the compiler kept the results of comparisons instead, the verifier would follow each shape
 * separately.
 */
static __always_inline __u64 shape_of(const struct weft_key *key, bool tunnelled)
{
	__u64 port = read_again(key->port);

	return tunnelled ? port | WEFT_TUNNEL : port & ~(__u64)(WEFT_TUNNEL | WEFT_TUNNEL6);
}

/* The megaflow of a key, and its number; NULL and WEFT_NO_FLOW if there is none. */
static __always_inline struct weft_flow *lookup(const struct weft_key *key, bool tunnelled,
						__u32 *number)
{
	struct weft_cache_entry *cached;
	struct weft_cache_page *page;
	struct weft_flow *flow;
	__u32 at, page_at;
	__u64 sum, shape = shape_of(key, tunnelled);

	*number = WEFT_NO_FLOW;
	OVER_SECTIONS(shape, +=, sum, hash_words, key_words(key));
	at = hash_index(sum, cache_shift);
	page_at = at / WEFT_CACHED_PER_PAGE;
	page = bpf_map_lookup_elem(&weft_cache, &page_at);
	if (!page)
		return 0;
	cached = &page->entries[at % WEFT_CACHED_PER_PAGE];
	*number = cached->flow;
	flow = flow_at(*number);
	/* An empty entry never matches: its EtherType is 0, which no frame's key has. */
	if (flow && flow->generation == cached->generation && is_in_force(cached->generation) &&
	    is_cached(cached, key, shape_of(key, tunnelled)))
		return flow;
	*number = search_and_cache(key, cached);
	return *number == WEFT_NO_FLOW ? 0 : flow_at(*number);
}

/* Counts a packet for its megaflow. Userspace counts punted packets itself. */
static __always_inline void count_flow(__u32 number, __u32 bytes)
{
	__u32 at = number / WEFT_FLOW_STATS_PER_PAGE;
	struct weft_flow_stats_page *page = bpf_map_lookup_elem(&weft_flow_stats, &at);

	if (page) {
		struct weft_flow_stats *stats = &page->stats[number % WEFT_FLOW_STATS_PER_PAGE];

		stats->packets++;
		stats->bytes += bytes;
	}
}
