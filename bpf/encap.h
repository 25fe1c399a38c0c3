/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Encapsulation, with the same result as flow::encap in userspace (crates/flow/src/encap.rs). The
 * outer header is built on the stack from the end point's class, the end point and the frame's key.
 *
 * Entropy
 * -------
 * The outer source port is a hash of the inner flow. Programs and userspace
 * (crates/flow/src/inner_flow.rs) compute the same hash. Its input is five words of the frame as
 * sent:
 *
 *	IPv4:	w0 = source << 32 | destination, w1 = w2 = w3 = 0
 *	IPv6:	w0, w1 = source, w2, w3 = destination, the upper half first
 *		w4 = protocol << 32 | source port << 16 | destination port
 *	others:	w0 = Ethernet destination << 16, w1 = Ethernet source << 16,
 *		w2 = w3 = w4 = 0
 *
 * The protocol is that of the upper layer, behind IPv6 extension headers. The ports are those of
 * TCP, UDP and SCTP; they are 0 for other protocols and for all fragments, the first included. With
 * f0 to f5 = entropy_factors, in wrapping 64-bit arithmetic:
 *
 *	sum = w0 * f0 + w1 * f1 + w2 * f2 + w3 * f3 + w4 * f4
 *	hash = ((sum ^ sum >> 32) * f5) >> 32		(32 bits)
 *	port = entropy_base + (hash & entropy_mask)	(16 bits)
 *
 * The flow label of an outer IPv6 header is the port, too (RFC 6438).
 *
 * Checksums
 * ---------
 * checksum.h computes the sum of the inner packet for the outer UDP checksum. No helper can request
 * outer checksums for the segments of a super-packet. Over IPv4, where the checksum is optional,
 * they are sent without one. Over IPv6 super-packets are punted, because receivers discard
 * datagrams without a checksum (RFC 8200 section 8.1).
 */
#pragma once

#include "vmlinux.h"

#include <bpf/bpf_core_read.h>

#include "rewrite.h"
#include "checksum.h"

/* OVN's Geneve option for logical ports: its length in bytes, and class, type, length in words. */
#define OPTION_LEN 8
#define OPTION (WEFT_GENEVE_CLASS_OVN << 16 | WEFT_GENEVE_TYPE_LOGICAL_PORTS << 8 | 1)

/*
 * Offsets in the buffer for the outer header and the rewritten part of the inner Ethernet header
 * (addresses, tags, EtherType). It begins at 2, so that IP addresses and other words are aligned.
 */
#define HEADER_AT 2
#define L3_AT (HEADER_AT + ETH_LEN)
#define UDP4_AT (L3_AT + IP4_LEN)
#define UDP6_AT (L3_AT + IP6_LEN)
/* Offset in the buffer of the number of tags. The verifier does not track numbers there. */
#define COUNT_AT 1
/* Longest IPv4 header without an option: Ethernet, IP, UDP, VXLAN or Geneve. */
#define HEADER4_MAX (ETH_LEN + IP4_LEN + UDP_LEN + 8)
/*
 * Bytes that are copied from the class, from the IP header on, in whole words. The rest is set to
 * 0.
 */
#define COPIED4_LEN 48
#define COPIED6_LEN 56
/*
 * Room for the option, addresses and three tags: the verifier only knows that there are at most
 * three.
 */
#define BUFFER4_LEN 88
#define BUFFER6_LEN 112

_Static_assert(ETH_LEN + COPIED4_LEN >= HEADER4_MAX + OPTION_LEN, "IPv4 headers are copied whole");

static __always_inline any16 *at16(__u8 *outer, __u32 at)
{
	return (any16 *)(outer + at);
}

static __always_inline any32 *at32(__u8 *outer, __u32 at)
{
	return (any32 *)(outer + at);
}

static __always_inline any64 *at64(__u8 *outer, __u32 at)
{
	return (any64 *)(outer + at);
}

static __always_inline __u16 entropy_port(const struct weft_key *key)
{
	__u64 sum, ports = 0;

	switch (l3_shape(key)) {
	case WEFT_L3_IP6:
		sum = key->l3[0] * entropy_factors[0] + key->l3[1] * entropy_factors[1] +
		      key->l3[2] * entropy_factors[2] + key->l3[3] * entropy_factors[3];
		break;
	case WEFT_L3_IP4:
		sum = key->l3[0] * entropy_factors[0];
		break;
	default:
		sum = (key->eth_dst & ~0xffffULL) * entropy_factors[0] +
		      key->eth_src * entropy_factors[1];
		goto folded;
	}
	/* The upper half is 0 for protocols without ports. */
	if (ip_frag(key) == FRAG_WHOLE)
		ports = key->transport >> WEFT_TP_DST_SHIFT;
	sum += ((__u64)ip_proto(key) << 32 | ports) * entropy_factors[WEFT_ENTROPY_LAST_WORD];
folded:
	sum = (sum ^ sum >> 32) * entropy_factors[WEFT_ENTROPY_FINISH];
	return weft_config.entropy_base + ((sum >> 32) & weft_config.entropy_mask);
}

/* Outer TOS (RFC 6040 section 4.1, normal mode) and TTL of a class that inherits either. */
static __always_inline void inherit(const struct weft_key *key, const struct weft_class *class,
				    __u32 *tos, __u32 *ttl)
{
	__u8 inner = key->ip >> WEFT_IP_TTL_SHIFT;

	if (class->flags & WEFT_CLASS_DSCP_INHERIT)
		*tos = key->ip >> IP_TOS_SHIFT & 0xff;
	if (!(class->flags & WEFT_CLASS_TTL_INHERIT))
		return;
	*ttl = WEFT_TTL_UNLESS_GIVEN;
	if (is_ip(key))
		*ttl = inner ? inner : 1;
}

/* Fills in, from `at` on, the UDP ports and length, and the tunnel's key and option. */
static __always_inline void fill_tunnel(__u8 *outer, const struct weft_class *class,
					const struct weft_action *action, __u32 at, __u16 port,
					__u32 len)
{
	__u32 number = action->value >> WEFT_ENCAP_KEY_SHIFT;

	if (class->tunnel >= WEFT_OVER_GRE) {
		if (class->flags & WEFT_CLASS_KEY)
			*at32(outer, at + 4) = bpf_htonl(number);
		else if (class->tunnel == (WEFT_OVER_GRE | WEFT_NVGRE))
			/* VSID and FlowID (RFC 7637 section 3.2) */
			*at32(outer, at + 4) = bpf_htonl(number << 8 | (port & 0xff));
		return;
	}
	*at16(outer, at) = bpf_htons(port);
	*at16(outer, at + 4) = bpf_htons(len);
	*at32(outer, at + 12) = bpf_htonl(number << 8);
	if (class->tunnel == WEFT_GENEVE && action->has_ports) {
		outer[at + 8] = OPTION_LEN / 4;
		outer[at + 9] = 0x40;	/* C: a critical option is present */
		*at32(outer, at + 16) = bpf_htonl(OPTION);
		*at32(outer, at + 20) = bpf_htonl((__u32)action->value);
	}
}

static __always_inline void fill_ip4(__u8 *outer, const struct weft_endpoint *endpoint,
				     const struct weft_class *class, __u32 tos, __u32 ttl,
				     __u32 len)
{
	__u32 remote = endpoint->remote[0], sum;

	/* Folded twice: six 16-bit words give less than 2^19. */
	sum = (remote & 0xffff) + (remote >> 16) + class->ip_sum + bpf_htons(tos) +
	      bpf_htons(len) + bpf_htons(ttl << 8);
	sum = (sum & 0xffff) + (sum >> 16);
	sum += sum >> 16;

	*at16(outer, L3_AT - 2) = bpf_htons(ETHERTYPE_IP4);
	outer[L3_AT + 1] = tos;
	*at16(outer, L3_AT + 2) = bpf_htons(len);
	outer[L3_AT + 8] = ttl;
	*at16(outer, L3_AT + 10) = ~sum;
	*at32(outer, L3_AT + 16) = remote;
}

static __always_inline void fill_ip6(__u8 *outer, const struct weft_endpoint *endpoint,
				     __u32 tos, __u32 ttl, __u16 port, __u32 len)
{
	*at16(outer, L3_AT - 2) = bpf_htons(ETHERTYPE_IP6);
	*at32(outer, L3_AT) = bpf_htonl(6U << 28 | tos << 20 | port);
	*at16(outer, L3_AT + 4) = bpf_htons(len - IP6_LEN);
	outer[L3_AT + 7] = ttl;
	*at32(outer, L3_AT + 24) = endpoint->remote[0];
	*at32(outer, L3_AT + 28) = endpoint->remote[1];
	*at32(outer, L3_AT + 32) = endpoint->remote[2];
	*at32(outer, L3_AT + 36) = endpoint->remote[3];
}

/* Fills in the outer header. `len`: bytes from the outer IP header on. */
static __always_inline void fill(__u8 *outer, const struct weft_key *key,
				 const struct weft_action *action,
				 const struct weft_endpoint *endpoint,
				 const struct weft_class *class, bool is_ip6, __u32 len)
{
	__u32 tos = class->dscp | (key->ip >> WEFT_IP_ECN_SHIFT & 3), ttl = class->ttl;
	/* eth_src follows eth_dst. */
	const void *addresses = endpoint->eth_dst;
	const int copied = is_ip6 ? COPIED6_LEN : COPIED4_LEN;
	__u16 port = 0;
	int i;

	if (class->flags & (WEFT_CLASS_DSCP_INHERIT | WEFT_CLASS_TTL_INHERIT))
		inherit(key, class, &tos, &ttl);
	if (class->tunnel != (WEFT_OVER_GRE | WEFT_GRE) || is_ip6)
		port = entropy_port(key);
	*at16(outer, HEADER_AT) = *(const any16 *)addresses;
	*at32(outer, HEADER_AT + 2) = *(const any32 *)(addresses + 2);
	*at32(outer, HEADER_AT + 6) = *(const any32 *)(addresses + 6);
	*at16(outer, HEADER_AT + 10) = *(const any16 *)(addresses + 10);
#pragma clang loop unroll(full)
	for (i = 0; i < copied / 8; i++)
		*at64(outer, L3_AT + i * 8) = *(const any64 *)(class->header + ETH_LEN + i * 8);
	if (is_ip6) {
		fill_ip6(outer, endpoint, tos, ttl, port, len);
		fill_tunnel(outer, class, action, UDP6_AT, port, len - IP6_LEN);
	} else {
		fill_ip4(outer, endpoint, class, tos, ttl, len);
		fill_tunnel(outer, class, action, UDP4_AT, port, len - IP4_LEN);
	}
}

/*
 * Removes the tags of the frame, because inside the tunnel all of them must be in the packet data.
 * The outermost tag is in the skb's metadata. When the helper removes it, it moves a second tag
 * from the data to the metadata. Stores the number of tags, at most 2, and the tags, outer first.
 * Returns 0, or -1 on error.
 */
static __always_inline int take_tags(struct __sk_buff *skb, __u32 tags[2], volatile __u8 *count)
{
	/* Stored before the comparison, after which the verifier would know a 0 and track it. */
	*count = skb->vlan_present;
	if (!skb->vlan_present)
		return 0;
	tags[0] = bpf_htonl(bpf_ntohs(skb->vlan_proto) << 16 | (skb->vlan_tci & 0xffff));
	if (bpf_skb_vlan_pop(skb))
		return -1;
	*count = 1;
	if (skb->vlan_present) {
		tags[1] = bpf_htonl(bpf_ntohs(skb->vlan_proto) << 16 | (skb->vlan_tci & 0xffff));
		if (bpf_skb_vlan_pop(skb))
			return -1;
		*count = 2;
	}
	return 0;
}

/* Whether the skb is marked as encapsulated, because the guest itself sent a tunnel packet. */
static __always_inline bool is_encapsulated(struct __sk_buff *ctx)
{
	struct sk_buff *skb = (void *)ctx;

	return BPF_CORE_READ_BITFIELD_PROBED(skb, encapsulation);
}

static __always_inline __u64 sum_header(__u8 *outer, __u32 from, __u32 to)
{
	__u64 sum = 0;
	__u32 at;

#pragma clang loop unroll(full)
	for (at = from; at < to; at += 4)
		sum += *at32(outer, at);
	return sum;
}

/*
 * Bytes of the UDP, VXLAN or Geneve, and inner Ethernet headers, in whole words. The second
 * constant includes OVN's option, the third also two tags.
 */
#define SUMMED_LEN (UDP_LEN + 8 + ETH_LEN + 2)
#define SUMMED_OPTION_LEN (SUMMED_LEN + OPTION_LEN)
#define SUMMED_MAX_LEN (SUMMED_OPTION_LEN + 2 * TAG_LEN)

_Static_assert(UDP4_AT + SUMMED_MAX_LEN <= BUFFER4_LEN && UDP6_AT + SUMMED_MAX_LEN <= BUFFER6_LEN,
	       "the sum stays inside the buffer");
/* So an option, or two tags without one, end within SUMMED_OPTION_LEN. */
_Static_assert(OPTION_LEN >= 2 * TAG_LEN, "all tags are summed");

/*
 * Fills in the outer UDP checksum. `sum` covers everything after the inner Ethernet header. `total`
 * is the outer IP length, `len` the length of the outer headers and the inner Ethernet header.
 */
static __always_inline void fill_checksum(__u8 *outer, bool is_ip6, __u64 sum,
					  __u32 total, __u32 len)
{
	const __u32 at = is_ip6 ? UDP6_AT : UDP4_AT;
	__u16 folded;

	sum += bpf_htons(PROTO_UDP);
	sum += bpf_htons(total - (is_ip6 ? IP6_LEN : IP4_LEN));
	sum += is_ip6 ? sum_header(outer, L3_AT + 8, L3_AT + 40) :
			sum_header(outer, L3_AT + 12, L3_AT + 20);
	/* Bytes of the buffer behind the header are 0. */
	sum += sum_header(outer, at, at + SUMMED_LEN);
	if (len > at - HEADER_AT + SUMMED_LEN) {
		sum += sum_header(outer, at + SUMMED_LEN, at + SUMMED_OPTION_LEN);
		if (len > at - HEADER_AT + SUMMED_OPTION_LEN)
			sum += sum_header(outer, at + SUMMED_OPTION_LEN, at + SUMMED_MAX_LEN);
	}
	folded = ~fold(sum);
	*at16(outer, at + 6) = folded ? folded : 0xffff;
}

/* Writes addresses, tags and EtherType of the frame behind the outer header. */
static __always_inline void fill_inner(__u8 *outer, const struct weft_key *key, __u32 at,
				       const __u32 tags[2], __u32 count, __be16 type)
{
	*at32(outer, at) = bpf_htonl(key->eth_dst >> 32);
	*at16(outer, at + 4) = bpf_htons(key->eth_dst >> 16);
	*at16(outer, at + 6) = bpf_htons(key->eth_src >> 48);
	*at32(outer, at + 8) = bpf_htonl(key->eth_src >> 16);
	if (read_again(outer[COUNT_AT])) {
		*at32(outer, at + 12) = tags[0];
		*at32(outer, at + 16) = tags[1];
	}
	*at16(outer, at + 12 + count * TAG_LEN) = type;
}

enum encap_result {
	ENCAP_OK = 0,
	/* The frame is unchanged, so it can still be punted. */
	ENCAP_REFUSED = 1,
	/* The frame has been changed: it has to be dropped. */
	ENCAP_LOST = 2,
};

/*
 * Adds `room` bytes of headroom to the skb and returns how many bytes of the buffer to store, or 0
 * on failure. bpf_skb_adjust_room() refuses packets that are not IP or already encapsulated. They
 * get headroom from bpf_skb_change_head(), which leaves their EtherType in place.
 */
static __always_inline __u32 make_room(struct __sk_buff *skb, const struct weft_key *key,
				       const struct weft_class *class, bool is_ip6, __u32 room,
				       __u32 tags_len)
{
	__u64 flags = BPF_F_ADJ_ROOM_FIXED_GSO | BPF_F_ADJ_ROOM_ENCAP_L2_ETH |
		      BPF_F_ADJ_ROOM_ENCAP_L2(ETH_LEN + tags_len);

	flags |= is_ip6 ? BPF_F_ADJ_ROOM_ENCAP_L3_IPV6 : BPF_F_ADJ_ROOM_ENCAP_L3_IPV4;
	flags |= read_again(class->tunnel) >= WEFT_OVER_GRE ? BPF_F_ADJ_ROOM_ENCAP_L4_GRE :
							  BPF_F_ADJ_ROOM_ENCAP_L4_UDP;
	if (is_ip(key) && !bpf_skb_adjust_room(skb, room, BPF_ADJ_ROOM_MAC, flags))
		return room + ETH_LEN;
	if (skb->gso_size || bpf_skb_change_head(skb, room, 0))
		return 0;
	return room + ETH_LEN - 2;
}

static __always_inline int encap(struct __sk_buff *skb, const struct weft_key *key,
				 const struct weft_action *action,
				 const struct weft_endpoint *endpoint, __u64 sum, __u8 *outer,
				 bool is_ip6)
{
	const __u32 buffer_len = is_ip6 ? BUFFER6_LEN : BUFFER4_LEN;
	__u32 tags[2] = {}, number, len, room, total;
	const struct weft_class *class;
	const __u32 copied = is_ip6 ? COPIED6_LEN : COPIED4_LEN;
	__be16 type, length;
	__u32 count;

	if (!key || !action || !endpoint)
		return ENCAP_REFUSED;
	number = endpoint->class;
	class = bpf_map_lookup_elem(&weft_classes, &number);
	if (!class)
		return ENCAP_REFUSED;
	len = class->len;
	if (class->tunnel == WEFT_GENEVE && action->has_ports)
		len += OPTION_LEN;
	hide_bounds(len, 0x1ff);
	if (len > (is_ip6 ? WEFT_HEADER_MAX : HEADER4_MAX) + OPTION_LEN)
		return ENCAP_REFUSED;
	/* Keeps the compiler from using a copy of `len` that the verifier did not see checked. */
	barrier_var(len);
	if (take_tags(skb, tags, outer + COUNT_AT))
		return ENCAP_LOST;
	count = read_again(outer[COUNT_AT]) & 3;
	type = bpf_htons(key->eth_dst);
	/* If the frame has an 802.3 length, the key has only a marker for it. */
	if (type == bpf_htons(WEFT_ETHERTYPE_NONE)) {
		if (bpf_skb_load_bytes(skb, ETH_LEN - 2, &length, sizeof(length)))
			return ENCAP_LOST;
		type = length;
	}
	__builtin_memset(outer + L3_AT + copied, 0, buffer_len - L3_AT - copied);
	room = len + count * TAG_LEN;
	total = skb->len + room - ETH_LEN;
	fill(outer, key, action, endpoint, class, is_ip6, total);
	fill_inner(outer, key, (HEADER_AT + len) & 0x7c, tags, count, type);
	if (sum)
		fill_checksum(outer, is_ip6, sum, total, room + ETH_LEN);
	room = make_room(skb, key, class, is_ip6, room, count * TAG_LEN);
	if (!room)
		return count ? ENCAP_LOST : ENCAP_REFUSED;
	if (room > buffer_len - HEADER_AT)
		return ENCAP_LOST;
	return bpf_skb_store_bytes(skb, 0, outer + HEADER_AT, room, 0) ? ENCAP_LOST :
										 ENCAP_OK;
}

/*
 * Encapsulates a frame. `sum` is the result of sum_of_packet() if the outer header gets a checksum,
 * otherwise 0. Global functions, because the verifier checks those only once. There are two, so
 * that header offsets are compile-time constants.
 */
__weak int encap4(struct __sk_buff *skb, const struct weft_key *key,
		  const struct weft_action *action, const struct weft_endpoint *endpoint, __u64 sum)
{
	__u8 outer[BUFFER4_LEN] __attribute__((aligned(8)));

	return encap(skb, key, action, endpoint, sum, outer, false);
}

__weak int encap6(struct __sk_buff *skb, const struct weft_key *key,
		  const struct weft_action *action, const struct weft_endpoint *endpoint, __u64 sum)
{
	__u8 outer[BUFFER6_LEN] __attribute__((aligned(8)));

	return encap(skb, key, action, endpoint, sum, outer, true);
}
