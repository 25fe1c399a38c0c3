// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/*
 * For labs, at tc egress, where packets go onto a wire between two hosts of one machine. The receiver of a
 * veth pair shares the head of a TCP segment with the sender's socket, which keeps it until it is
 * acknowledged; what comes from a network card is nobody else's.
 */
#include "vmlinux.h"

#include <bpf/bpf_helpers.h>

SEC("tc")
int weft_lab_unclone(struct __sk_buff *skb)
{
	/* Room for no byte more: a packet that is shared gets a head of its own first (skb_cow()). */
	bpf_skb_change_head(skb, 0, 0);
	return TC_ACT_UNSPEC;
}

char _license[] SEC("license") = "Dual BSD/GPL";
