// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/*
 * Updates of maps that programs read at the same time. The daemon runs these programs with
 * BPF_PROG_TEST_RUN, one at a time. Unlike an update by bpf(2), they write each word atomically,
 * and they compute hashes with the same code as lookups.
 */
#include "endpoint_lookup.h"

#define ENOENT 2
#define E2BIG 7
#define EINVAL 22

/* The optional sections of a key that are not 0. */
static __always_inline __u16 sections(const struct weft_key *key)
{
	const struct weft_key none = {};
	__u16 sections = 0;

	if (diff_words(key_words(key), key_words(&none), L3_FIRST, L3_LAST))
		sections |= WEFT_L3_LONG;
	if (diff_words(key_words(key), key_words(&none), ND_FIRST, ND_LAST))
		sections |= WEFT_ND;
	if (diff_words(key_words(key), key_words(&none), TUNNEL_FIRST, TUNNEL_LAST))
		sections |= WEFT_TUNNEL;
	if (diff_words(key_words(key), key_words(&none), TUNNEL6_FIRST, TUNNEL6_LAST))
		sections |= WEFT_TUNNEL6;
	return sections;
}

static __always_inline __u32 *bucket_of(const struct weft_key *key, __u32 mask)
{
	__u32 bucket = bucket_at(hash_words(key_words(key), BASE_FIRST, TUNNEL6_LAST), mask);

	return bpf_map_lookup_elem(&weft_buckets, &bucket);
}

/* Adds a megaflow. Its entry must have been in no chain for a grace period. */
SEC("syscall")
int flow_put(struct weft_control *control)
{
	struct weft_flow *flow = flow_at(control->flow);
	struct weft_key key = control->key;
	__u32 *bucket = bucket_of(&key, control->mask), number;
	int i;

	if (!flow || !bucket || control->flow == WEFT_NO_FLOW || flow->generation ||
	    !control->generation)
		return -EINVAL;
	number = *bucket;
	for (i = 0; i < WEFT_MAX_CHAIN && number != WEFT_NO_FLOW; i++) {
		struct weft_flow *other = flow_at(number);

		if (!other)
			return -EINVAL;
		number = other->next;
	}
	if (i == WEFT_MAX_CHAIN)
		return -E2BIG;
	flow->key = key;
	flow->mask = control->mask;
	flow->sections = sections(&key);
	flow->list = control->list;
	flow->pin = 0;
	flow->next = *bucket;
	flow->generation = control->generation;
	/* A full barrier: the entry is complete before it is reachable. */
	__sync_lock_test_and_set(bucket, control->flow);
	return 0;
}

/*
 * Removes a megaflow from its chain and invalidates its cache entries. Programs that found it
 * before may still use it until a grace period has passed.
 */
SEC("syscall")
int flow_delete(struct weft_control *control)
{
	struct weft_flow *flow = flow_at(control->flow), *other;
	struct weft_key key;
	__u32 *link;
	int i;

	if (!flow || control->flow == WEFT_NO_FLOW || !flow->generation)
		return -ENOENT;
	key = flow->key;
	link = bucket_of(&key, flow->mask);
	if (!link)
		return -EINVAL;
	for (i = 0; i < WEFT_MAX_CHAIN; i++) {
		if (*link == control->flow) {
			*(volatile __u32 *)link = flow->next;
			*(volatile __u64 *)&flow->generation = 0;
			return 0;
		}
		other = flow_at(*link);
		if (!other)
			return -EINVAL;
		/* Keeps the compiler from adding the offset before the NULL check. */
		barrier_var(other);
		link = &other->next;
	}
	return -ENOENT;
}

/*
 * Gives a megaflow an action list and a new generation, so that lookups accept it. Programs may
 * still use the old list for a grace period.
 */
SEC("syscall")
int flow_renew(struct weft_control *control)
{
	struct weft_flow *flow = flow_at(control->flow);

	if (!flow || control->flow == WEFT_NO_FLOW || !flow->generation)
		return -ENOENT;
	if (control->generation <= flow->generation)
		return -EINVAL;
	/* A full barrier: no lookup may see the new generation with the old list. */
	__sync_lock_test_and_set(&flow->list, control->list);
	*(volatile __u64 *)&flow->generation = control->generation;
	return 0;
}

/* Appends a mask to the list in use. Its number must have been unused for a grace period. */
SEC("syscall")
int mask_append(struct weft_control *control)
{
	__u32 number = mask_list_in_use & 1;
	struct weft_mask_list *list = bpf_map_lookup_elem(&weft_mask_lists, &number);
	__u32 count;

	if (!list)
		return -EINVAL;
	count = list->count;
	if (count >= WEFT_MAX_MASKS || control->mask >= WEFT_MAX_MASKS)
		return -E2BIG;
	list->order[count] = control->mask;
	/* A full barrier: the entry is written before the count. */
	__sync_lock_test_and_set(&list->count, count + 1);
	return 0;
}

/* Argument of the loop that makes room at the front of a list. */
struct promote_walk {
	struct weft_mask_list *list;
	__u32 mask;
	__u32 last;		/* current index of the mask */
};

static long find_in_list(__u32 at, struct promote_walk *walk)
{
	if (at >= WEFT_MAX_MASKS)
		return 1;
	walk->last = at;
	return walk->list->order[at] == walk->mask;
}

static long shift_back(__u32 step, struct promote_walk *walk)
{
	/* Bounds both indices for the verifier. */
	__u32 to = (walk->last - step) & (WEFT_MAX_MASKS - 1);
	__u32 from = (to - 1) & (WEFT_MAX_MASKS - 1);

	*(volatile __u32 *)&walk->list->order[to] = walk->list->order[from];
	return 0;
}

/*
 * Moves a mask to the front of the list in use. A search that runs meanwhile may try a mask twice,
 * and may miss the moved one, but no other.
 */
SEC("syscall")
int mask_promote(struct weft_control *control)
{
	struct promote_walk walk = { .mask = control->mask };
	__u32 at = mask_list_in_use & 1;
	struct weft_mask_list *list = bpf_map_lookup_elem(&weft_mask_lists, &at);

	if (!list)
		return -EINVAL;
	walk.list = list;
	bpf_loop(list->count, find_in_list, &walk, 0);
	at = walk.last & (WEFT_MAX_MASKS - 1);
	if (list->order[at] != control->mask)
		return -ENOENT;
	bpf_loop(at, shift_back, &walk, 0);
	*(volatile __u32 *)&list->order[0] = control->mask;
	return 0;
}

/* Switches lookups to the other list of masks. */
SEC("syscall")
int mask_list_swap(void *context)
{
	__sync_fetch_and_xor(&mask_list_in_use, 1);
	return 0;
}

/*
 * Updates an end point while programs use it and update its counters. It is marked as unresolved
 * while its addresses change.
 */
SEC("syscall")
int endpoint_put(struct weft_endpoint_update *change)
{
	__u32 number = change->number;
	struct weft_endpoint *endpoint = bpf_map_lookup_elem(&weft_endpoints, &number);

	if (!endpoint)
		return -ENOENT;
	*(volatile __u32 *)&endpoint->flags = change->endpoint.flags & ~WEFT_ENDPOINT_RESOLVED;
	__builtin_memcpy(endpoint->eth_dst, change->endpoint.eth_dst, sizeof(endpoint->eth_dst));
	__builtin_memcpy(endpoint->eth_src, change->endpoint.eth_src, sizeof(endpoint->eth_src));
	endpoint->max_len = change->endpoint.max_len;
	/* A full barrier: the addresses are written before the flags. */
	__sync_lock_test_and_set(&endpoint->flags, change->endpoint.flags);
	return 0;
}

/* Argument and result of a loop over a range of end points. */
struct sources_walk {
	__u32 first;
	__s32 result;
};

/* The chain that an end point belongs to. */
static __always_inline __u32 *chain_of(const struct weft_endpoint *endpoint)
{
	__u32 number = endpoint->class;
	struct weft_class *class = bpf_map_lookup_elem(&weft_classes, &number);

	if (!class)
		return 0;
	return sources_of(endpoint->remote, class->local, class->carrier,
			  class->flags & WEFT_CLASS_IP6);
}

static long source_put(__u32 at, struct sources_walk *walk)
{
	__u32 number = walk->first + at, other, *head;
	struct weft_endpoint *endpoint = bpf_map_lookup_elem(&weft_endpoints, &number);
	int i;

	head = endpoint ? chain_of(endpoint) : 0;
	if (!head) {
		walk->result = -ENOENT;
		return 1;
	}
	other = *head;
	for (i = 0; i < WEFT_MAX_SOURCES && other; i++) {
		struct weft_endpoint *in_chain;

		other -= 1;
		in_chain = bpf_map_lookup_elem(&weft_endpoints, &other);
		if (!in_chain)
			return 1;
		other = in_chain->next;
	}
	if (i == WEFT_MAX_SOURCES) {
		walk->result += 1;
		return 0;
	}
	endpoint->next = *head;
	/* A full barrier: the entry is complete before it is reachable. */
	__sync_lock_test_and_set(head, number + 1);
	return 0;
}

/*
 * Adds end points to weft_sources. They must have been in no chain for a grace period. Returns the
 * number of end points that were left out because their chain is full.
 */
SEC("syscall")
int sources_put(struct weft_endpoint_range *endpoints)
{
	struct sources_walk walk = { .first = endpoints->first };

	bpf_loop(endpoints->count, source_put, &walk, 0);
	return walk.result;
}

static long source_delete(__u32 at, struct sources_walk *walk)
{
	__u32 number = walk->first + at, *link, other;
	struct weft_endpoint *endpoint = bpf_map_lookup_elem(&weft_endpoints, &number), *in_chain;
	int i;

	link = endpoint ? chain_of(endpoint) : 0;
	if (!link) {
		walk->result = -ENOENT;
		return 1;
	}
	for (i = 0; i < WEFT_MAX_SOURCES && *link; i++) {
		if (*link == number + 1) {
			*(volatile __u32 *)link = endpoint->next;
			break;
		}
		other = *link - 1;
		in_chain = bpf_map_lookup_elem(&weft_endpoints, &other);
		if (!in_chain)
			return 1;
		/* Keeps the compiler from adding the offset before the NULL check. */
		barrier_var(in_chain);
		link = &in_chain->next;
	}
	return 0;
}

/* Removes end points from weft_sources. Programs may still use them for a grace period. */
SEC("syscall")
int sources_delete(struct weft_endpoint_range *endpoints)
{
	struct sources_walk walk = { .first = endpoints->first };

	bpf_loop(endpoints->count, source_delete, &walk, 0);
	return walk.result;
}

/* Replaces the settings; a program that runs now may see a mixture of old and new words. */
SEC("syscall")
int config_put(struct weft_config *config)
{
	weft_config = *config;
	return 0;
}

char _license[] SEC("license") __weak = "Dual BSD/GPL";
