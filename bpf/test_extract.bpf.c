// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/* For tests: the key of a frame, as the programs make it. */
#include "parse.h"

__u32 in_port;
bool has_tunnel;
struct tunnel tunnel;
/* A tag that the kernel has taken off, tpid << 16 | tci; 0: none. */
__u32 stripped_tag;
/* Bytes of the frame, which is cut to it or continued by bytes of 0; 0: as it is. */
__u32 frame_len;

struct weft_key key;
__s32 verdict;
__u32 runs;
/* How much of the frame was in its linear part. */
__u32 linear_len;

SEC("tc")
int test_extract(struct __sk_buff *skb)
{
	struct weft_key local;

	runs++;
	verdict = -1;
	if (frame_len && frame_len != skb->len && bpf_skb_change_tail(skb, frame_len, 0))
		return -1;
	if (stripped_tag &&
	    bpf_skb_vlan_push(skb, bpf_htons(stripped_tag >> 16), stripped_tag & 0xffff))
		return -1;
	linear_len = skb->data_end - skb->data;
	verdict = parse(skb, &local, in_port, has_tunnel ? &tunnel : 0);
	key = local;
	return TC_ACT_OK;
}

char _license[] SEC("license") = "Dual BSD/GPL";
