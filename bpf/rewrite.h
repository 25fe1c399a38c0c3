/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Rewrites header fields, with the same result as flow::execute in userspace
 * (crates/flow/src/rewrite.rs). The key is updated as well, because encapsulation takes DSCP, ECN,
 * TTL and the flow hash from it.
 *
 * All writes use helpers. If a program wrote to the packet directly, the verifier would insert a
 * prologue that un-clones the headers of every packet, even of those that are not changed.
 */
#pragma once

#include "exit.h"

#define IP4_TOS 0
#define IP4_TTL 8
#define IP4_SUM 10
#define IP4_SRC 12
#define IP4_DST 16
#define IP6_HOP_LIMIT 7
#define IP6_SRC 8
#define IP6_DST 24
#define UDP_SUM 6
#define TCP_SUM 16
#define ICMP6_SUM 2

/* A frame that a program changes has no more tags than this. */
#define MAX_TAGS 4

static __always_inline __u8 ip_proto(const struct weft_key *key)
{
	return key->ip >> 56;
}

static __always_inline __u8 ip_frag(const struct weft_key *key)
{
	return key->ip >> 32;
}

static __always_inline __u32 l3_shape(const struct weft_key *key)
{
	return key->port & WEFT_L3_ARP;
}

static __always_inline bool is_ip(const struct weft_key *key)
{
	return l3_shape(key) == WEFT_L3_IP4 || l3_shape(key) == WEFT_L3_IP6;
}

/* Offset of layer 3, or 0 on error. */
static __always_inline __u32 l3_offset(struct __sk_buff *skb)
{
	__u32 at = 12;
	__be16 type;
	int i;

#pragma clang loop unroll(disable)
	for (i = 0; i <= MAX_TAGS; i++) {
		if (bpf_skb_load_bytes(skb, at, &type, sizeof(type)))
			return 0;
		if (!is_tpid(bpf_ntohs(type)))
			return at + 2;
		at += TAG_LEN;
	}
	return 0;
}

/*
 * Offset of the transport checksum that covers addresses and ports, or 0 if the packet has none:
 * later fragments and other protocols do not.
 */
static __always_inline __u32 sum_offset(struct __sk_buff *skb, const struct weft_key *key,
					__u32 l4)
{
	if (ip_frag(key) == FRAG_LATER)
		return 0;
	switch (ip_proto(key)) {
	case PROTO_TCP:
		return l4 + TCP_SUM;
	case PROTO_UDP:
		return l4 + UDP_SUM;
	case PROTO_ICMP6:
		return l3_shape(key) == WEFT_L3_IP6 ? l4 + ICMP6_SUM : 0;
	default:
		return 0;
	}
}

static __always_inline __u32 l4_offset(struct __sk_buff *skb, const struct weft_key *key, __u32 l3)
{
	__u8 first;

	if (l3_shape(key) == WEFT_L3_IP6)
		return l3 + IP6_LEN;
	if (bpf_skb_load_bytes(skb, l3, &first, 1))
		return 0;
	return l3 + (first & 0x0f) * 4;
}

/*
 * Rewrites 4 bytes (IPv4) or 8 bytes (half an IPv6 address) at offset `at`, and the checksums that
 * cover them. `old` and `new` are in network order.
 */
static __always_inline int set_address(struct __sk_buff *skb, const struct weft_key *key, __u32 l3,
				       __u32 at, __u64 old, __u64 new)
{
	bool is_ip4 = l3_shape(key) == WEFT_L3_IP4;
	__u32 l4 = l4_offset(skb, key, l3), sum = l4 ? sum_offset(skb, key, l4) : 0;
	__u32 flags = BPF_F_PSEUDO_HDR;
	__s64 change;

	if (!l4)
		return -1;
	if (ip_proto(key) == PROTO_UDP)
		flags |= BPF_F_MARK_MANGLED_0;
	if (is_ip4) {
		if (bpf_l3_csum_replace(skb, l3 + IP4_SUM, (__u32)old, (__u32)new, 4) ||
		    (sum && bpf_l4_csum_replace(skb, sum, (__u32)old, (__u32)new, flags | 4)))
			return -1;
		return bpf_skb_store_bytes(skb, at, &new, 4, 0);
	}
	change = bpf_csum_diff((__be32 *)&old, sizeof(old), (__be32 *)&new, sizeof(new), 0);
	if (change < 0)
		return -1;
	if (sum) {
		if (bpf_l4_csum_replace(skb, sum, 0, change, flags))
			return -1;
		/*
		 * CHECKSUM_COMPLETE covers the whole packet. IPv6 has no header checksum that would
		 * cancel the change of the address, as that of IPv4 does.
		 */
		bpf_csum_update(skb, change);
	}
	return bpf_skb_store_bytes(skb, at, &new, sizeof(new), 0);
}

static __always_inline int set_ip4_src(struct __sk_buff *skb, struct weft_key *key, __u32 l3,
				       __u32 value)
{
	__u32 old = key->l3[0] >> 32;

	key->l3[0] = (__u64)value << 32 | (__u32)key->l3[0];
	return set_address(skb, key, l3, l3 + IP4_SRC, bpf_htonl(old), bpf_htonl(value));
}

static __always_inline int set_ip4_dst(struct __sk_buff *skb, struct weft_key *key, __u32 l3,
				       __u32 value)
{
	__u32 old = key->l3[0];

	key->l3[0] = (key->l3[0] & ~0xffffffffULL) | value;
	return set_address(skb, key, l3, l3 + IP4_DST, bpf_htonl(old), bpf_htonl(value));
}

/* Rewrites half an IPv6 address; `word` counts the four halves of source and destination. */
static __always_inline int set_ip6(struct __sk_buff *skb, struct weft_key *key, __u32 l3,
				   __u32 word, __u64 value)
{
	__u64 old = key->l3[word];

	key->l3[word] = value;
	return set_address(skb, key, l3, l3 + IP6_SRC + word * 8, bpf_cpu_to_be64(old),
			   bpf_cpu_to_be64(value));
}

/* Rewrites two bytes of the IPv4 header that only the header checksum covers. */
static __always_inline int set_ip4_word(struct __sk_buff *skb, __u32 l3, __u32 at, __be16 old,
					__be16 new)
{
	if (bpf_l3_csum_replace(skb, l3 + IP4_SUM, old, new, 2))
		return -1;
	return bpf_skb_store_bytes(skb, l3 + at, &new, sizeof(new), 0);
}

static __always_inline int set_ttl(struct __sk_buff *skb, struct weft_key *key, __u32 l3,
				   __u8 value)
{
	__u16 old = key->ip >> 40 & 0xff, proto = ip_proto(key);

	key->ip = (key->ip & ~(0xffULL << 40)) | (__u64)value << 40;
	if (l3_shape(key) == WEFT_L3_IP4)
		return set_ip4_word(skb, l3, IP4_TTL, bpf_htons(old << 8 | proto),
				    bpf_htons(value << 8 | proto));
	return bpf_skb_store_bytes(skb, l3 + IP6_HOP_LIMIT, &value, 1, BPF_F_RECOMPUTE_CSUM);
}

/* Rewrites the bits of `mask` in the IPv4 TOS or IPv6 traffic class. */
static __always_inline int set_tos(struct __sk_buff *skb, struct weft_key *key, __u32 l3,
				   __u8 value, __u8 mask)
{
	__u8 tos = key->ip >> 48;
	__be16 old;
	__u16 first;

	tos = (tos & ~mask) | (value & mask);
	key->ip = (key->ip & ~(0xffULL << 48)) | (__u64)tos << 48;
	if (bpf_skb_load_bytes(skb, l3, &old, sizeof(old)))
		return -1;
	first = bpf_ntohs(old);
	if (l3_shape(key) == WEFT_L3_IP4)
		return set_ip4_word(skb, l3, IP4_TOS, old, bpf_htons((first & 0xff00) | tos));
	old = bpf_htons((first & 0xf00f) | tos << 4);
	return bpf_skb_store_bytes(skb, l3, &old, sizeof(old), BPF_F_RECOMPUTE_CSUM);
}

/* Rewrites a port of TCP or UDP. */
static __always_inline int set_port(struct __sk_buff *skb, struct weft_key *key, __u32 l3,
				    bool is_dst, __u16 value)
{
	__u32 l4 = l4_offset(skb, key, l3), shift = is_dst ? 32 : 48, sum;
	__be16 old = bpf_htons(key->transport >> shift), new = bpf_htons(value);
	__u32 flags = sizeof(new);

	if (!l4)
		return -1;
	sum = sum_offset(skb, key, l4);
	if (!sum)
		return 0;
	if (ip_proto(key) == PROTO_UDP)
		flags |= BPF_F_MARK_MANGLED_0;
	key->transport = (key->transport & ~(0xffffULL << shift)) | (__u64)value << shift;
	if (bpf_l4_csum_replace(skb, sum, old, new, flags))
		return -1;
	return bpf_skb_store_bytes(skb, l4 + (is_dst ? 2 : 0), &new, sizeof(new), 0);
}

static __always_inline int set_mac(struct __sk_buff *skb, __u64 *word, __u32 at, __u64 value)
{
	__be64 left = bpf_cpu_to_be64(value << 16);

	*word = value << 16 | (*word & 0xffff);
	return bpf_skb_store_bytes(skb, at, &left, 6, 0);
}

/* Rewrites a field (enum weft_set_field) whose header the frame has. Returns 0 or an error. */
__weak int set_field(struct __sk_buff *skb, struct weft_key *key, __u32 field, __u64 value,
		     __u32 mask)
{
	__u32 l3;

	if (!key)
		return -1;
	if (field == WEFT_SET_ETH_DST)
		return set_mac(skb, &key->eth_dst, 0, value);
	if (field == WEFT_SET_ETH_SRC)
		return set_mac(skb, &key->eth_src, 6, value);
	l3 = l3_offset(skb);
	if (!l3)
		return -1;
	switch (field) {
	case WEFT_SET_IP4_SRC:
		return set_ip4_src(skb, key, l3, value);
	case WEFT_SET_IP4_DST:
		return set_ip4_dst(skb, key, l3, value);
	case WEFT_SET_IP4_TTL:
	case WEFT_SET_IP6_HOP_LIMIT:
		return set_ttl(skb, key, l3, value);
	case WEFT_SET_IP4_TOS:
	case WEFT_SET_IP6_TOS:
		return set_tos(skb, key, l3, value, mask);
	case WEFT_SET_IP6_SRC_HIGH:
		return set_ip6(skb, key, l3, 0, value);
	case WEFT_SET_IP6_SRC_LOW:
		return set_ip6(skb, key, l3, 1, value);
	case WEFT_SET_IP6_DST_HIGH:
		return set_ip6(skb, key, l3, 2, value);
	case WEFT_SET_IP6_DST_LOW:
		return set_ip6(skb, key, l3, 3, value);
	case WEFT_SET_TP_SRC:
		return set_port(skb, key, l3, false, value);
	case WEFT_SET_TP_DST:
		return set_port(skb, key, l3, true, value);
	default:
		return -1;
	}
}

/* Whether set_field() can rewrite this field in a frame of this key. */
static __always_inline bool can_set(const struct weft_key *key, __u32 field, bool has_extensions)
{
	__u8 proto = ip_proto(key);
	__u32 shape = l3_shape(key);

	switch (field) {
	case WEFT_SET_IP4_SRC:
	case WEFT_SET_IP4_DST:
		/* Not for DCCP (33) and UDP-Lite (136): their checksums are not updated here. */
		return shape == WEFT_L3_IP4 && proto != 33 && proto != 136;
	case WEFT_SET_IP4_TTL:
	case WEFT_SET_IP4_TOS:
		return shape == WEFT_L3_IP4;
	case WEFT_SET_IP6_SRC_HIGH:
	case WEFT_SET_IP6_SRC_LOW:
	case WEFT_SET_IP6_DST_HIGH:
	case WEFT_SET_IP6_DST_LOW:
		return shape == WEFT_L3_IP6 && !has_extensions && proto != 33 && proto != 136;
	case WEFT_SET_IP6_HOP_LIMIT:
	case WEFT_SET_IP6_TOS:
		return shape == WEFT_L3_IP6;
	case WEFT_SET_TP_SRC:
	case WEFT_SET_TP_DST:
		/* SCTP has a CRC, which helpers cannot update. */
		return ip_frag(key) != FRAG_LATER && !has_extensions &&
		       (proto == PROTO_TCP || proto == PROTO_UDP);
	default:
		return true;
	}
}
