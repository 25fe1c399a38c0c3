// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/* For tests and measurements: the path of a frame up to its megaflow, and parts of it. */
#include "lookup.h"
#include "parse.h"

__u32 in_port;
struct tunnel tunnel;

/* What a run costs without any of it. */
SEC("tc")
int test_empty(struct __sk_buff *skb)
{
	return TC_ACT_OK;
}

SEC("tc")
int test_parse(struct __sk_buff *skb)
{
	struct weft_key key;

	return parse(skb, &key, in_port, 0) + (key.port >> 63);
}

/* Parse, key, exact-match cache, masks: the number of the megaflow. */
SEC("tc")
int test_lookup(struct __sk_buff *skb)
{
	struct weft_key key;

	if (parse(skb, &key, in_port, 0) != WEFT_PARSED)
		return WEFT_NO_FLOW;
	return lookup(&key, skb->len);
}

/* The same for a frame that came by a tunnel. */
SEC("tc")
int test_tunnel(struct __sk_buff *skb)
{
	struct weft_key key;

	if (parse(skb, &key, in_port, &tunnel) != WEFT_PARSED)
		return WEFT_NO_FLOW;
	return lookup(&key, skb->len);
}

/* As test_lookup(), without the cache. */
SEC("tc")
int test_search(struct __sk_buff *skb)
{
	struct weft_key key;

	if (parse(skb, &key, in_port, 0) != WEFT_PARSED)
		return WEFT_NO_FLOW;
	return search(&key);
}

char _license[] SEC("license") __weak = "Dual BSD/GPL";
