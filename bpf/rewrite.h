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

/* The offset of the operation in an ARP packet. */
#define ARP_OP_AT 6
#define UDP_SUM 6
#define TCP_SUM 16
#define ICMP6_SUM 2

/*
 * The most tags of a frame whose IP headers a program can change; l3_offset() fails with more. It
 * is not `vlan::MAX_TAGS`, the number of tags in a key.
 */
#define MAX_TAGS 4

static __always_inline __u8 ip_proto(const struct weft_key *key)
{
	return key->ip >> WEFT_IP_PROTO_SHIFT;
}

static __always_inline __u8 ip_frag(const struct weft_key *key)
{
	return key->ip >> WEFT_IP_FRAG_SHIFT;
}

static __always_inline __u32 l3_shape(const struct weft_key *key)
{
	return key->port & WEFT_L3_ARP;
}

static __always_inline bool is_ip(const struct weft_key *key)
{
	return l3_shape(key) == WEFT_L3_IP4 || l3_shape(key) == WEFT_L3_IP6;
}

/*
 * Offset of layer 3, or 0 on error. A global function, because otherwise the verifier would explore
 * the code after it once for each number of tags.
 */
__weak __u32 l3_offset(struct __sk_buff *skb)
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
 * Offset of the transport checksum that covers addresses and ports, or 0 if the packet has none, as
 * later fragments and other protocols.
 */
static __always_inline __u32 sum_offset(struct __sk_buff *skb, const struct weft_key *key,
					__u32 l4)
{
	if (ip_frag(key) == WEFT_FRAG_LATER)
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

/* Parts of a frame that differ from its key, after actions have changed the key. */
enum stale_headers {
	STALE_MACS = 1,
	STALE_IP = 2,		/* any field of the IP header */
	STALE_ADDRESSES = 4,	/* those that transport checksums cover */
	STALE_PORTS = 8,
	STALE_ARP = 16,
};

/* Flags for the helper that updates the transport checksum by a difference. */
static __always_inline __u32 sum_flags(const struct weft_key *key)
{
	return ip_proto(key) == PROTO_UDP ? BPF_F_MARK_MANGLED_0 : 0;
}

/*
 * The difference of two sums of `words` 16-bit words, in ones' complement, where 0xffff is 0. It is
 * never negative, and not folded.
 */
static __always_inline __u32 sum_change(__u32 before, __u32 after, __u32 words)
{
	return after + words * 0xffff - before;
}

static __always_inline int write_macs(struct __sk_buff *skb, const struct weft_key *key)
{
	__be64 macs[2] = {
		bpf_cpu_to_be64((key->eth_dst & ~0xffffULL) | key->eth_src >> 48),
		bpf_cpu_to_be64(key->eth_src << 16),
	};

	return bpf_skb_store_bytes(skb, 0, macs, 12, 0);
}

/*
 * Writes the IPv4 header and its checksum. With `addresses` it also updates the transport checksum,
 * which covers them. With `macs` it also writes the Ethernet header in front.
 */
static __always_inline int write_ip4(struct __sk_buff *skb, const struct weft_key *key, __u32 l3,
				     bool addresses, bool macs)
{
	struct {
		/* Two bytes of padding and the destination. */
		__be64 eth_dst;
		/* The source and the EtherType. */
		__be64 eth_src;
		union {
			__be16 word[IP4_LEN / 2];
			__be32 address[IP4_LEN / 4];
		};
	} head;
	__be16 *word = head.word;
	__u32 change, rest, sum, first, at;

	if (bpf_skb_load_bytes(skb, l3, word, IP4_LEN))
		return -1;
	change = word[6] + word[7] + word[8] + word[9];
	rest = word[0] + word[4];
	first = bpf_ntohs(word[0]);
	word[0] = bpf_htons((first & 0xff00) | (key->ip >> IP_TOS_SHIFT & 0xff));
	word[4] = bpf_htons((key->ip >> WEFT_IP_TTL_SHIFT & 0xff) << 8 | ip_proto(key));
	head.address[3] = bpf_htonl(key->l3[0] >> WEFT_IP4_SRC_SHIFT);
	head.address[4] = bpf_htonl((__u32)key->l3[0]);
	change = sum_change(change, word[6] + word[7] + word[8] + word[9], 4);
	sum = (__u16)~word[5] + change + sum_change(rest, word[0] + word[4], 2);
	sum = (sum & 0xffff) + (sum >> 16);
	word[5] = ~(sum + (sum >> 16));
	if (addresses) {
		at = sum_offset(skb, key, l3 + (first >> 8 & 0x0f) * 4);
		if (at && bpf_l4_csum_replace(skb, at, 0, change,
					      BPF_F_PSEUDO_HDR | sum_flags(key)))
			return -1;
	}
	if (!macs)
		return bpf_skb_store_bytes(skb, l3, word, IP4_LEN, 0);
	head.eth_dst = bpf_cpu_to_be64(key->eth_dst >> 16);
	head.eth_src = bpf_cpu_to_be64((key->eth_src & ~0xffffULL) | (key->eth_dst & 0xffff));
	return bpf_skb_store_bytes(skb, 0, (void *)&head + 2, ETH_LEN + IP4_LEN, 0);
}

/* The sum of both 32-bit words, not folded. */
static __always_inline __u64 sum_of_half(__be64 half)
{
	return (half & 0xffffffff) + (half >> 32);
}

/* As write_ip4(), for IPv6. With `addresses`, the header must have no extension headers. */
static __always_inline int write_ip6(struct __sk_buff *skb, const struct weft_key *key, __u32 l3,
				     bool addresses)
{
	union {
		__be16 word[IP6_LEN / 2];
		__be64 half[IP6_LEN / 8];
	} ip;
	/* Keeps the difference positive, and is 0 in ones' complement. */
	__u64 change = 8 * 0xffffffffULL;
	__u32 i, at;

	if (bpf_skb_load_bytes(skb, l3, &ip, sizeof(ip)))
		return -1;
	ip.word[0] = bpf_htons((bpf_ntohs(ip.word[0]) & 0xf00f) |
			       (key->ip >> IP_TOS_SHIFT & 0xff) << 4);
	ip.word[3] = bpf_htons((bpf_ntohs(ip.word[3]) & 0xff00) |
			       (key->ip >> WEFT_IP_TTL_SHIFT & 0xff));
	if (addresses) {
#pragma unroll
		for (i = 0; i < 4; i++) {
			change -= sum_of_half(ip.half[i + 1]);
			ip.half[i + 1] = bpf_cpu_to_be64(key->l3[i]);
			change += sum_of_half(ip.half[i + 1]);
			/* Keeps the compiler from spilling all halves to the stack. */
			barrier_var(change);
		}
		change = sum_of_half(sum_of_half(change));
		at = sum_offset(skb, key, l3 + IP6_LEN);
		if (at && bpf_l4_csum_replace(skb, at, 0, change,
					      BPF_F_PSEUDO_HDR | sum_flags(key)))
			return -1;
	}
	/*
	 * CHECKSUM_COMPLETE covers the whole packet. IPv6 has no header checksum that would cancel
	 * the change, as that of IPv4 does.
	 */
	return bpf_skb_store_bytes(skb, l3, &ip, sizeof(ip), BPF_F_RECOMPUTE_CSUM);
}

/* Writes the ports of TCP or UDP. */
static __always_inline int write_ports(struct __sk_buff *skb, const struct weft_key *key, __u32 l3)
{
	__u32 l4 = l4_offset(skb, key, l3), before, sum;
	__be16 ports[2];

	if (!l4)
		return -1;
	sum = sum_offset(skb, key, l4);
	if (!sum)
		return 0;
	if (bpf_skb_load_bytes(skb, l4, ports, sizeof(ports)))
		return -1;
	before = ports[0] + ports[1];
	ports[0] = bpf_htons(key->transport >> WEFT_TP_SRC_SHIFT);
	ports[1] = bpf_htons(key->transport >> WEFT_TP_DST_SHIFT);
	if (bpf_l4_csum_replace(skb, sum, 0, sum_change(before, ports[0] + ports[1], 2),
				sum_flags(key)))
		return -1;
	return bpf_skb_store_bytes(skb, l4, ports, sizeof(ports), 0);
}

/* Writes the operation and the addresses of ARP. The key has the operation in the word of `sha`. */
static __always_inline int write_arp(struct __sk_buff *skb, const struct weft_key *key)
{
	__u32 l3 = l3_offset(skb);
	__u64 ips = key->l3[0], sha = key->l3[1], tha = key->l3[2];
	__be16 word[11] = {
		bpf_htons(sha),
		bpf_htons(sha >> 48), bpf_htons(sha >> 32), bpf_htons(sha >> 16),
		bpf_htons(ips >> 48), bpf_htons(ips >> 32),
		bpf_htons(tha >> 48), bpf_htons(tha >> 32), bpf_htons(tha >> 16),
		bpf_htons(ips >> 16), bpf_htons(ips),
	};

	if (!l3)
		return -1;
	return bpf_skb_store_bytes(skb, l3 + ARP_OP_AT, word, sizeof(word), BPF_F_RECOMPUTE_CSUM);
}

/*
 * Writes the headers that differ from the key (enum stale_headers), each with one helper call,
 * because these calls cost most. `l3`: ETH_LEN if the frame is known to have no tags. Returns 0 or
 * an error.
 */
__weak int write_headers(struct __sk_buff *skb, const struct weft_key *key, __u32 stale, __u32 l3)
{
	bool addresses = stale & STALE_ADDRESSES, macs = stale & STALE_MACS, is_ip4;

	if (!key)
		return -1;
	is_ip4 = l3_shape(key) == WEFT_L3_IP4;
	if (is_ip4 && stale & STALE_IP && l3 == ETH_LEN) {
		if (write_ip4(skb, key, ETH_LEN, addresses, macs))
			return -1;
		return stale & STALE_PORTS ? write_ports(skb, key, ETH_LEN) : 0;
	}
	if (macs && write_macs(skb, key))
		return -1;
	if (stale & STALE_ARP)
		return write_arp(skb, key);
	if (!(stale & (STALE_IP | STALE_PORTS)))
		return 0;
	l3 = l3_offset(skb);
	if (!l3)
		return -1;
	if (stale & STALE_IP && (is_ip4 ? write_ip4(skb, key, l3, addresses, false) :
					  write_ip6(skb, key, l3, addresses)))
		return -1;
	return stale & STALE_PORTS ? write_ports(skb, key, l3) : 0;
}

/* Replaces the bits `mask << shift` of a word of the key. */
static __always_inline void set_bits(__u64 *word, __u32 shift, __u64 mask, __u64 value)
{
	*word = (*word & ~(mask << shift)) | (value & mask) << shift;
}

/* Shift and mask of a field, from its row in crates/flow/src/field/table.rs. */
#define PLACE(name) WEFT_##name##_SHIFT, (1ULL << WEFT_##name##_BITS) - 1

/*
 * Sets a field (enum weft_set_field) of the key. The frame must have this field. Returns the
 * headers that have to be written to the frame: bits of enum stale_headers.
 */
__weak int set_key_field(struct weft_key *key, __u32 field, __u64 value, __u32 mask)
{
	if (!key)
		return 0;
	switch (field) {
	case WEFT_SET_ETH_DST:
		set_bits(&key->eth_dst, PLACE(ETH_DST), value);
		return STALE_MACS;
	case WEFT_SET_ETH_SRC:
		set_bits(&key->eth_src, PLACE(ETH_SRC), value);
		return STALE_MACS;
	case WEFT_SET_IP4_SRC:
		set_bits(&key->l3[0], PLACE(IP4_SRC), value);
		return STALE_IP | STALE_ADDRESSES;
	case WEFT_SET_IP4_DST:
		set_bits(&key->l3[0], PLACE(IP4_DST), value);
		return STALE_IP | STALE_ADDRESSES;
	case WEFT_SET_IP4_TTL:
	case WEFT_SET_IP6_HOP_LIMIT:
		set_bits(&key->ip, PLACE(IP_TTL), value);
		return STALE_IP;
	case WEFT_SET_IP4_TOS:
	case WEFT_SET_IP6_TOS:
		mask &= 0xff;
		set_bits(&key->ip, IP_TOS_SHIFT, mask, value);
		return STALE_IP;
	case WEFT_SET_IP6_SRC_HIGH:
		key->l3[0] = value;
		return STALE_IP | STALE_ADDRESSES;
	case WEFT_SET_IP6_SRC_LOW:
		key->l3[1] = value;
		return STALE_IP | STALE_ADDRESSES;
	case WEFT_SET_IP6_DST_HIGH:
		key->l3[2] = value;
		return STALE_IP | STALE_ADDRESSES;
	case WEFT_SET_IP6_DST_LOW:
		key->l3[3] = value;
		return STALE_IP | STALE_ADDRESSES;
	case WEFT_SET_TP_SRC:
		set_bits(&key->transport, PLACE(TP_SRC), value);
		return STALE_PORTS;
	case WEFT_SET_TP_DST:
		set_bits(&key->transport, PLACE(TP_DST), value);
		return STALE_PORTS;
	case WEFT_SET_ARP_OP:
		set_bits(&key->l3[1], PLACE(ARP_OP), value);
		return STALE_ARP;
	case WEFT_SET_ARP_SHA:
		set_bits(&key->l3[1], PLACE(ARP_SHA), value);
		return STALE_ARP;
	case WEFT_SET_ARP_SPA:
		set_bits(&key->l3[0], PLACE(ARP_SPA), value);
		return STALE_ARP;
	case WEFT_SET_ARP_THA:
		set_bits(&key->l3[2], PLACE(ARP_THA), value);
		return STALE_ARP;
	case WEFT_SET_ARP_TPA:
		set_bits(&key->l3[0], PLACE(ARP_TPA), value);
		return STALE_ARP;
	default:
		return 0;
	}
}

/* Rewrites one field of a frame that has it. Returns 0 or an error. */
static __always_inline int set_field(struct __sk_buff *skb, struct weft_key *key, __u32 field,
				     __u64 value, __u32 mask)
{
	return write_headers(skb, key, set_key_field(key, field, value, mask), 0);
}

#define FIELD(name) (1U << WEFT_SET_##name)
#define FIELDS_OF_IP4 (FIELD(IP4_SRC) | FIELD(IP4_DST) | FIELD(IP4_TTL) | FIELD(IP4_TOS))
#define ADDRESSES_OF_IP6 (FIELD(IP6_SRC_HIGH) | FIELD(IP6_SRC_LOW) | FIELD(IP6_DST_HIGH) | \
			  FIELD(IP6_DST_LOW))
#define FIELDS_OF_IP6 (ADDRESSES_OF_IP6 | FIELD(IP6_HOP_LIMIT) | FIELD(IP6_TOS))
#define FIELDS_OF_ARP (FIELD(ARP_OP) | FIELD(ARP_SHA) | FIELD(ARP_SPA) | FIELD(ARP_THA) | \
		       FIELD(ARP_TPA))
#define ADDRESSES (FIELD(IP4_SRC) | FIELD(IP4_DST) | ADDRESSES_OF_IP6)
#define PORTS (FIELD(TP_SRC) | FIELD(TP_DST))

/* Fields that the transport checksum covers. */
#define SUMMED_FIELDS (ADDRESSES | PORTS)

/*
 * Whether actions can rewrite these fields in a frame of this key. `fields`: bits by the numbers of
 * enum weft_set_field.
 */
static __always_inline bool can_set(const struct weft_key *key, __u32 fields, bool has_extensions)
{
	__u8 proto = ip_proto(key);
	__u32 shape = l3_shape(key);

	if (fields & FIELDS_OF_IP4 && shape != WEFT_L3_IP4)
		return false;
	if (fields & FIELDS_OF_IP6 && shape != WEFT_L3_IP6)
		return false;
	if (fields & FIELDS_OF_ARP && shape != WEFT_L3_ARP)
		return false;
	if (has_extensions && fields & (ADDRESSES_OF_IP6 | PORTS))
		return false;
	/* Not for DCCP and UDP-Lite: their checksums are not updated here. */
	if (fields & ADDRESSES && (proto == PROTO_DCCP || proto == PROTO_UDP_LITE))
		return false;
	/* SCTP has a CRC, which helpers cannot update. */
	return !(fields & PORTS) || (ip_frag(key) != WEFT_FRAG_LATER &&
				     (proto == PROTO_TCP || proto == PROTO_UDP));
}
