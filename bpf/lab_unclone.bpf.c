// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/*
 * For test labs: makes a veth pair between two namespaces more like a wire between two machines. On
 * a veth pair the receiver gets clones of the TCP segments that the sender's socket keeps until
 * they are acknowledged, and decapsulation has to copy their headers. A NIC delivers no clones.
 */
#include "vmlinux.h"

#include <bpf/bpf_helpers.h>

SEC("tc")
int weft_lab_unclone(struct __sk_buff *skb)
{
	/* Adds 0 bytes, but un-clones the skb first (skb_cow()). */
	bpf_skb_change_head(skb, 0, 0);
	return TC_ACT_UNSPEC;
}

char _license[] SEC("license") = "Dual BSD/GPL";
