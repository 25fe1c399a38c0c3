/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * A program that punts every frame of a device. It takes the place of those in bpf/. PORT is the
 * port's number, TAP the interface index of the TAP. If IS_UPLINK, it punts only what the datapath
 * otherwise receives by packet sockets: tagged frames, and GRE to this host.
 */
#include <linux/bpf.h>

#define SEC(name) __attribute__((section(name), used))
#define HELPER(number) ((void *)(number))

static long (*const store_bytes)(struct __sk_buff *, __u32, const void *, __u32, __u64) = HELPER(9);
static long (*const redirect)(__u32, __u64) = HELPER(23);
static long (*const load_bytes)(const struct __sk_buff *, __u32, void *, __u32) = HELPER(26);
static long (*const change_head)(struct __sk_buff *, __u32, __u64) = HELPER(43);

enum { PASS = 0, DROP = 2, GRE = 47, FOR_THIS_HOST = 0 };

#define BE16(x) __builtin_bswap16(x)
#define BE32(x) __builtin_bswap32(x)

static __inline int is_for_packet_socket(struct __sk_buff *skb)
{
	__u16 type = 0;
	__u8 proto = 0;

	if (skb->vlan_present || load_bytes(skb, 12, &type, 2))
		return 1;
	switch (BE16(type)) {
	case 0x8100:
	case 0x88a8:
	case 0x9100:
		return 1;
	case 0x0800:
		return skb->pkt_type == FOR_THIS_HOST &&
		       !load_bytes(skb, 23, &proto, 1) && proto == GRE;
	case 0x86dd:
		return skb->pkt_type == FOR_THIS_HOST &&
		       !load_bytes(skb, 20, &proto, 1) && proto == GRE;
	}
	return 0;
}

SEC("tc")
int hand_over(struct __sk_buff *skb)
{
	struct {
		__u32 port;
		__u8 nobody[8];
		__u16 type;
	} __attribute__((packed)) header = { .port = BE32(PORT), .type = BE16(0x88b5) };

	if (IS_UPLINK && !is_for_packet_socket(skb))
		return PASS;
	if (change_head(skb, sizeof(header), 0) || store_bytes(skb, 0, &header, sizeof(header), 0))
		return DROP;
	return redirect(TAP, 0);
}

SEC("license") const char licence[] = "Dual BSD/GPL";
