// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/* For tests and measurements: steps of processing a frame, up to the lookup of its megaflow. */
#include "decap.h"

#define VXLAN4_LEN (ETH_LEN + IP4_LEN + UDP_LEN + VXLAN_LEN)

__u32 in_port;
struct tunnel tunnel;

/* Does nothing, to measure the overhead of a test run. */
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

/* Parses, looks up and counts a frame. Returns the number of its megaflow. */
SEC("tc")
int test_lookup(struct __sk_buff *skb)
{
	struct weft_key key;
	__u32 number;

	if (parse(skb, &key, in_port, 0) != WEFT_PARSED)
		return WEFT_NO_FLOW;
	lookup(&key, false, &number);
	count_flow(number, skb->len);
	return number;
}

/* As test_lookup(), for a frame that arrived by a tunnel. */
SEC("tc")
int test_tunnel(struct __sk_buff *skb)
{
	struct weft_key key;
	__u32 number;

	if (parse(skb, &key, in_port, &tunnel) != WEFT_PARSED)
		return WEFT_NO_FLOW;
	lookup(&key, true, &number);
	count_flow(number, skb->len);
	return number;
}

/* As test_lookup(), without the exact-match cache. */
SEC("tc")
int test_search(struct __sk_buff *skb)
{
	struct weft_key key;

	if (parse(skb, &key, in_port, 0) != WEFT_PARSED)
		return WEFT_NO_FLOW;
	return search(&key);
}

/* Only the helper calls that VXLAN over IPv4 needs: a lower bound of the cost of encapsulation. */
SEC("tc")
int test_put_on(struct __sk_buff *skb)
{
	const __u64 flags = BPF_F_ADJ_ROOM_FIXED_GSO | BPF_F_ADJ_ROOM_ENCAP_L2_ETH |
			    BPF_F_ADJ_ROOM_ENCAP_L2(ETH_LEN) | BPF_F_ADJ_ROOM_ENCAP_L3_IPV4 |
			    BPF_F_ADJ_ROOM_ENCAP_L4_UDP;
	__u8 header[VXLAN4_LEN + ETH_LEN] = {};

	if (bpf_skb_adjust_room(skb, VXLAN4_LEN, BPF_ADJ_ROOM_MAC, flags) ||
	    bpf_skb_store_bytes(skb, 0, header, sizeof(header), 0))
		return TC_ACT_SHOT;
	return bpf_redirect(1, 0);
}

SEC("tc")
int test_take_off(struct __sk_buff *skb)
{
	const __u64 flags = BPF_F_ADJ_ROOM_FIXED_GSO | BPF_F_ADJ_ROOM_NO_CSUM_RESET;
	__u8 ethernet[ETH_LEN];

	if (bpf_skb_load_bytes(skb, VXLAN4_LEN, ethernet, ETH_LEN) ||
	    bpf_skb_adjust_room(skb, -VXLAN4_LEN, BPF_ADJ_ROOM_MAC, flags) ||
	    bpf_skb_store_bytes(skb, 0, ethernet, ETH_LEN, 0))
		return TC_ACT_SHOT;
	return bpf_redirect_peer(1, 0);
}

char _license[] SEC("license") __weak = "Dual BSD/GPL";
