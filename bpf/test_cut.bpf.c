// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/* For tests: cuts a packet to fewer bytes than a test run accepts, and runs a program on it. */
#include "vmlinux.h"

#include <bpf/bpf_helpers.h>

struct {
	__uint(type, BPF_MAP_TYPE_PROG_ARRAY);
	__type(key, __u32);
	__type(value, __u32);
	__uint(max_entries, 1);
} test_next SEC(".maps");

__u32 frame_len;

SEC("tc")
int test_cut(struct __sk_buff *skb)
{
	if (bpf_skb_change_tail(skb, frame_len, 0))
		return -1;
	bpf_tail_call(skb, &test_next, 0);
	return -1;
}

char _license[] SEC("license") = "Dual BSD/GPL";
