// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/* For tests: extracts the key of a frame, and stores it in a variable. */
#include "parse.h"

__u32 in_port;
bool has_tunnel;
struct tunnel tunnel;
/* A tag to put into the skb's metadata, TPID << 16 | TCI; 0: none. */
__u32 stripped_tag;
/* Length to cut or zero-extend the frame to; 0: leave it. */
__u32 frame_len;

struct weft_key key;
__s32 verdict;
__u32 runs;
/* Bytes of the frame in the linear part of the skb. */
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
	/* The key of a malformed frame is incomplete. */
	if (verdict == WEFT_PARSED)
		key = local;
	return TC_ACT_OK;
}

char _license[] SEC("license") = "Dual BSD/GPL";
