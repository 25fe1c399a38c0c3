/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Extracts the flow key of a frame, by the same rules as flow::extract
 * (crates/flow/src/extract.rs).
 *
 * Userspace creates megaflows from the keys that flow::extract extracts. The programs look them up
 * with the keys that this code extracts. So both must agree in every bit; `cargo xtask
 * bpf-agreement` compares them. If this code cannot parse a frame, its caller punts the frame to
 * userspace.
 *
 * This code reads headers in place. If some headers are outside the linear part of the skb, it
 * pulls them there and parses the frame again.
 */
#pragma once

#include "key.h"
#include "verifier.h"

#define ETH_LEN 14
#define TAG_LEN 4
#define SNAP_LEN 8
/* LLC header and OUI in front of an EtherType. */
#define SNAP_PREFIX 0xaaaa03000000ULL

#define IP4_LEN 20
#define IP4_OFFSET 0x1fff
#define IP4_MORE 0x2000
#define IP6_LEN 40
#define ARP_LEN 28
#define TCP_LEN 20
#define UDP_LEN 8
#define SCTP_LEN 12
#define ICMP_LEN 8
#define ND_LEN 24

/*
 * Bounds of header offsets, for the verifier. More than Ethernet, two tags, IPv6 and 13 extension
 * headers of 2,048 bytes.
 */
#define MAX_L4_OFFSET 0x7fff
/* More than all outer headers, Ethernet and two tags. */
#define MAX_IP6_OFFSET 0xff
/* More than Ethernet and four tags. */
#define MAX_L3_OFFSET 0x1f
/* The most options of a neighbour solicitation or advertisement. Messages with more are punted. */
#define MAX_ND_OPTIONS 8
/* Bytes to pull first: enough for Ethernet, two tags, IPv6, some extension headers and TCP. */
#define PULL_LEN 256

/* `ip_frag` of a packet that is not a fragment. */
#define FRAG_WHOLE 0

struct frame {
	struct __sk_buff *skb;
	void *data;	/* first byte of the (inner) frame */
	void *end;	/* end of the skb's linear part */
	__u32 len;	/* of the frame, including its non-linear part */
	__u32 offset;	/* of the first byte in the skb: length of outer headers */
};

/* Limit of `offset`: more than the longest outer headers, IPv6 and Geneve with OVN's option. */
#define MAX_OFFSET 127

/*
 * Where the guest's frame is in the skb. Underlay tags are the VLAN tags that weft itself adds on
 * an uplink. They are no part of the frame.
 */
struct inner_frame {
	__u32 skip;			/* bytes of underlay tags behind its MAC addresses */
	/*
	 * Bytes of outer headers in front of the frame. The verifier does not track a number in the
	 * second half of 8 bytes (see forget()), so it forgets which headers they were.
	 */
	__u32 offset;
	bool skb_tag_is_underlay;	/* the tag in the skb's metadata is one */
	__u8 unused[3];			/* the verifier demands that all bytes are set */
};

/* Where the transport header begins, and how long the IP packet is from there on. */
struct l4_header {
	void *at;
	__u32 len;
	__u8 proto;
	bool is_ip6;
};

/*
 * The result when the linear part ends before `at`: malformed if the whole frame ends there, too;
 * otherwise the headers must be pulled.
 */
static __always_inline int not_linear(const struct frame *frame, const void *at)
{
	return at - frame->data > frame->len ? WEFT_MALFORMED : WEFT_PULL;
}

static __always_inline bool is_tpid(__u16 type)
{
	return type == ETHERTYPE_VLAN || type == ETHERTYPE_QINQ || type == ETHERTYPE_VLAN_9100;
}

/* Whether RFC 4861 allows an option's length and, in prefix information, its prefix length. */
static __always_inline bool nd_option_is_valid(const __u8 *option, __u32 len)
{
	switch (option[0]) {
	case 1:
	case 2:
	case 5:
		return len == 8;
	case 3:
		return len == 32 && option[2] <= 128;
	default:
		return true;
	}
}

/*
 * The state while options are parsed: offset of the next option in the message, and whether the
 * wanted option has been found.
 */
#define ND_OFFSET_MASK 0xfff
#define ND_FOUND 0x1000

/* The option whose address a key contains: source (1) or target link-layer address (2). */
static __always_inline __u8 wanted_nd_option(const void *message)
{
	return *(const __u8 *)message == ND_SOLICIT ? 1 : 2;
}

/*
 * Parses an option of a message of `len` bytes. `state` and the result consist of ND_OFFSET_MASK
 * and ND_FOUND; a result below 0 is minus an enum weft_parse.
 */
static __always_inline int parse_nd_option(struct weft_key *key, const void *message,
					   const void *end, __u32 len, __u32 state, __u8 wanted)
{
	__u32 at = state & ND_OFFSET_MASK, option_len;
	const __u8 *option = message + at;

	if (at + 8 > len)
		return -WEFT_MALFORMED;
	if ((const void *)option + 8 > end)
		return -WEFT_PULL;
	option_len = option[1] * 8;
	if (!option_len || at + option_len > len || !nd_option_is_valid(option, option_len))
		return -WEFT_MALFORMED;
	if (option[0] == wanted) {
		if (state & ND_FOUND)
			return -WEFT_MALFORMED;
		state |= ND_FOUND;
		key->nd[2] = be64(option) << 16;
	}
	at += option_len;
	return at > ND_OFFSET_MASK ? -WEFT_UPCALL : (int)((state & ND_FOUND) | at);
}

/* As parse_nd_option(), with the arguments of parse_nd(), for options after FREQUENT_ND_OPTIONS. */
__weak int parse_rare_nd_option(struct __sk_buff *skb, struct weft_key *key, __u32 start, __u32 len,
				__u32 state)
{
	void *message = (void *)(long)skb->data, *end = (void *)(long)skb->data_end;

	if (!key || start > MAX_L4_OFFSET)
		return -WEFT_UPCALL;
	message += start;
	if (message + ND_LEN > end)
		return -WEFT_PULL;
	return parse_nd_option(key, message, end, len, state, wanted_nd_option(message));
}

/*
 * The number of options in usual messages. A global function, which the verifier checks only once,
 * parses further ones.
 */
#define FREQUENT_ND_OPTIONS 2

/*
 * Parses a neighbour solicitation or advertisement: `len` bytes of ICMPv6 at offset `start`. It is
 * a global function, because the verifier checks a global function only once, not once per call.
 */
__weak int parse_nd(struct __sk_buff *skb, struct weft_key *key, __u32 start, __u32 len)
{
	void *message = (void *)(long)skb->data, *end = (void *)(long)skb->data_end;
	int i, state;
	__u8 wanted;

	if (!key || start > MAX_L4_OFFSET)
		return WEFT_UPCALL;
	hide_bounds(start, MAX_L4_OFFSET);
	message += start;
	if (len < ND_LEN)
		return WEFT_MALFORMED;
	if (message + ND_LEN > end)
		return WEFT_PULL;
	wanted = wanted_nd_option(message);
	key->port |= wanted == 1 ? WEFT_ND : WEFT_ND | WEFT_ND_ADVERT;
	key->nd[0] = be64(message + 8);
	key->nd[1] = be64(message + 16);
	state = forget(ND_LEN);
	for (i = 0; i < MAX_ND_OPTIONS; i++) {
		if ((state & ND_OFFSET_MASK) == len)
			return WEFT_PARSED;
		state = i < FREQUENT_ND_OPTIONS ?
				parse_nd_option(key, message, end, len, state, wanted) :
				parse_rare_nd_option(skb, key, start, len, state);
		if (state < 0)
			return -state;
	}
	return (state & ND_OFFSET_MASK) == len ? WEFT_PARSED : WEFT_UPCALL;
}

/* The fields tp_src and tp_dst of a transport header, which begins with both. */
static __always_inline __u64 ports_word(const void *l4)
{
	_Static_assert(WEFT_TP_DST_SHIFT == 32, "the ports are the upper half");
	return bpf_be64_to_cpu((__u64) * (const __u32 *)l4);
}

static __always_inline int parse_tcp(struct weft_key *key, const struct frame *frame,
				     const struct l4_header *l4)
{
	__u32 word, len;

	_Static_assert(WEFT_TCP_FLAGS_SHIFT == 16, "the flags are where the header has them");
	if (l4->len < TCP_LEN)
		return WEFT_MALFORMED;
	if (l4->at + TCP_LEN > frame->end)
		return WEFT_PULL;
	/* Header length in words, flags, and window. */
	word = be32(l4->at + 12);
	len = word >> 28 << 2;
	if (len < TCP_LEN || len > l4->len)
		return WEFT_MALFORMED;
	key->transport = ports_word(l4->at) | (word & 0x0fff0000);
	return WEFT_PARSED;
}

/* Parses a transport header of at least `len` bytes that begins with two ports. */
static __always_inline int parse_ports(struct weft_key *key, const struct frame *frame,
				       const struct l4_header *l4, __u32 len)
{
	if (l4->len < len)
		return WEFT_MALFORMED;
	if (l4->at + len > frame->end)
		return WEFT_PULL;
	key->transport = ports_word(l4->at);
	return WEFT_PARSED;
}

static __always_inline int parse_icmp(struct weft_key *key, const struct frame *frame,
				      const struct l4_header *l4)
{
	__u16 type_code;

	if (l4->len < ICMP_LEN)
		return WEFT_MALFORMED;
	if (l4->at + ICMP_LEN > frame->end)
		return WEFT_PULL;
	type_code = be16(l4->at);
	key->transport = type_code;
	if (l4->is_ip6 && (type_code == ND_SOLICIT << 8 || type_code == ND_ADVERT << 8))
		return parse_nd(frame->skb, key, l4->at - frame->data + frame->offset, l4->len);
	return WEFT_PARSED;
}

static __always_inline int parse_l4(struct weft_key *key, const struct frame *frame,
				    const struct l4_header *l4)
{
	__u32 proto = l4->proto;

	if (proto == PROTO_TCP)
		return parse_tcp(key, frame, l4);
	/* Keeps the compiler from testing for other protocols before TCP, the most frequent one. */
	barrier_var(proto);
	switch (proto) {
	case PROTO_UDP:
		return parse_ports(key, frame, l4, UDP_LEN);
	case PROTO_SCTP:
		return parse_ports(key, frame, l4, SCTP_LEN);
	case PROTO_ICMP:
		return l4->is_ip6 ? WEFT_PARSED : parse_icmp(key, frame, l4);
	case PROTO_ICMP6:
		return l4->is_ip6 ? parse_icmp(key, frame, l4) : WEFT_PARSED;
	default:
		return WEFT_PARSED;
	}
}

static __always_inline int parse_ip4(struct weft_key *key, const struct frame *frame, void *l3)
{
	struct l4_header l4 = {};
	const __u8 *ip = l3;
	__u32 len, total, more;
	__u16 fragment;
	__u8 frag;

	if (l3 + IP4_LEN > frame->end)
		return not_linear(frame, l3 + IP4_LEN);
	len = (ip[0] & 0x0f) * 4;
	total = be16(ip + 2);
	if (ip[0] >> 4 != 4 || len < IP4_LEN || total < len ||
	    total > frame->len - (l3 - frame->data))
		return WEFT_MALFORMED;
	fragment = be16(ip + 6);
	more = fragment & IP4_MORE ? WEFT_FRAG_FIRST : FRAG_WHOLE;
	frag = fragment & IP4_OFFSET ? WEFT_FRAG_LATER : more;
	key->port |= WEFT_L3_IP4;
	key->ip = ip_word(ip[9], ip[1], ip[8], frag, 0);
	key->l3[0] = be64(ip + 12);
	if (frag == WEFT_FRAG_LATER)
		return WEFT_PARSED;
	l4.at = l3 + len;
	l4.len = total - len;
	l4.proto = ip[9];
	return parse_l4(key, frame, &l4);
}

/* The upper layer of an IPv6 packet, behind its extension headers. */
struct upper_layer {
	__u32 at;	/* offset from the beginning of the IPv6 header */
	__u8 proto;
	__u8 frag;
	__u16 pad;
};

/*
 * Result of walk_extension() when it is not at the upper layer yet; otherwise 0 or an enum
 * weft_parse.
 */
#define WALK_ON -1

/* Advances `upper` by one header if it is at an extension header. `ip`: the IPv6 header. */
static __always_inline int walk_extension(void *ip, void *end, __u32 total,
					  struct upper_layer *upper)
{
	__u8 *header, proto;
	__u16 fragment;
	__u32 at, len;

	/* Loads both from the caller's memory, of which the verifier knows nothing. */
	barrier();
	proto = upper->proto;
	at = upper->at;
	if (proto != PROTO_HOP_BY_HOP && proto != PROTO_ROUTING && proto != PROTO_DESTINATION &&
	    proto != PROTO_AH && proto != PROTO_FRAGMENT)
		return 0;
	hide_bounds(at, MAX_L4_OFFSET);
	header = ip + at;
	if (at + 8 > total)
		return WEFT_MALFORMED;
	if ((void *)header + 8 > end)
		return WEFT_PULL;
	len = (header[1] + 1) * 8;
	if (proto == PROTO_AH)
		len = (header[1] + 2) * 4;
	if (proto == PROTO_FRAGMENT) {
		len = 8;
		fragment = be16(header + 2);
		upper->frag = fragment & 1 ? WEFT_FRAG_FIRST : FRAG_WHOLE;
		if (fragment & ~7)
			upper->frag = WEFT_FRAG_LATER;
	}
	if (at + len > total)
		return WEFT_MALFORMED;
	upper->at = at + len;
	upper->proto = header[0];
	if (header[0] == PROTO_HOP_BY_HOP)
		return WEFT_MALFORMED;
	return upper->frag == WEFT_FRAG_LATER ? 0 : WALK_ON;
}

/*
 * As walk_extension(), with the arguments of walk_extensions(), for headers after
 * FREQUENT_EXTENSIONS.
 */
__weak int walk_rare_extension(struct __sk_buff *skb, __u32 l3, __u32 total,
			       struct upper_layer *upper)
{
	void *ip = (void *)(long)skb->data, *end = (void *)(long)skb->data_end;

	if (!upper || l3 > MAX_IP6_OFFSET)
		return WEFT_UPCALL;
	return walk_extension(ip + l3, end, total, upper);
}

/*
 * The verifier checks a loop body once per iteration. So only the first iterations of some loops
 * have the code inline, which is faster. The rare further ones call a global function.
 */
#define FREQUENT_EXTENSIONS 2

/*
 * Walks the extension headers of an IPv6 packet of `total` bytes to the upper layer. The packet
 * begins at offset `l3` of the skb. In a later fragment the walk stops behind the fragment header.
 * Returns 0 on success, otherwise an enum weft_parse. It is a global function, because the verifier
 * checks a global function only once, not once per call.
 */
__weak int walk_extensions(struct __sk_buff *skb, __u32 l3, __u32 total, struct upper_layer *upper)
{
	void *ip = (void *)(long)skb->data, *end = (void *)(long)skb->data_end;
	int i, result;

	if (!upper || l3 > MAX_IP6_OFFSET)
		return WEFT_UPCALL;
	/* The compiler may use a copy of `l3` whose check the verifier did not see. */
	hide_bounds(l3, MAX_IP6_OFFSET);
	ip += l3;
	if (ip + IP6_LEN > end)
		return WEFT_PULL;
	upper->at = IP6_LEN;
	upper->proto = *(__u8 *)(ip + 6);
	upper->frag = FRAG_WHOLE;
#pragma clang loop unroll(disable)
	for (i = 0; i < FREQUENT_EXTENSIONS; i++) {
		result = walk_extension(ip, end, total, upper);
		if (result != WALK_ON)
			return result;
	}
#pragma clang loop unroll(disable)
	for (; i <= WEFT_MAX_EXTENSION_HEADERS; i++) {
		result = walk_rare_extension(skb, l3, total, upper);
		if (result != WALK_ON)
			return result;
	}
	return WEFT_MALFORMED;
}

static __always_inline int parse_ip6(struct weft_key *key, const struct frame *frame, void *l3)
{
	struct upper_layer upper = { .frag = FRAG_WHOLE };
	struct l4_header l4 = { .is_ip6 = true };
	const __u8 *ip = l3;
	__u32 word, total;
	int result;

	if (l3 + IP6_LEN > frame->end)
		return not_linear(frame, l3 + IP6_LEN);
	word = be32(ip);
	total = IP6_LEN + be16(ip + 4);
	if (word >> 28 != 6 || total > frame->len - (l3 - frame->data))
		return WEFT_MALFORMED;
	key->port |= WEFT_L3_IP6;
	key->l3[0] = be64(ip + 8);
	key->l3[1] = be64(ip + 16);
	key->l3[2] = be64(ip + 24);
	key->l3[3] = be64(ip + 32);
	l4.proto = ip[6];
	l4.at = l3 + IP6_LEN;
	l4.len = total - IP6_LEN;
	if (l4.proto != PROTO_TCP && l4.proto != PROTO_UDP && l4.proto != PROTO_ICMP6) {
		result = walk_extensions(frame->skb, l3 - frame->data + frame->offset, total,
					 &upper);
		if (result)
			return result;
		hide_bounds(upper.at, MAX_L4_OFFSET);
		l4.proto = upper.proto;
		l4.at = l3 + upper.at;
		l4.len = total - upper.at;
	}
	key->ip = ip_word(l4.proto, word >> 20 & 0xff, ip[7], upper.frag, word & 0xfffff);
	if (upper.frag == WEFT_FRAG_LATER)
		return WEFT_PARSED;
	return parse_l4(key, frame, &l4);
}

static __always_inline int parse_arp(struct weft_key *key, const struct frame *frame, void *l3)
{
	const __u8 *arp = l3;

	if (l3 + ARP_LEN > frame->end)
		return not_linear(frame, l3 + ARP_LEN);
	/* Hardware type Ethernet (1), protocol IPv4, address lengths 6 and 4. */
	if (be32(arp) != 0x00010800 || be16(arp + 4) != 0x0604)
		return WEFT_MALFORMED;
	key->port |= WEFT_L3_ARP;
	key->l3[0] = (__u64)be32(arp + 14) << WEFT_ARP_SPA_SHIFT |
		     be32(arp + 24) << WEFT_ARP_TPA_SHIFT;
	key->l3[1] = be48(arp + 8) | be16(arp + 6) << WEFT_ARP_OP_SHIFT;
	key->l3[2] = be48(arp + 18);
	return WEFT_PARSED;
}

/*
 * Reads up to two VLAN tags into the key. The outer one may be in the skb's metadata: the kernel
 * moves tags of TPID 0x8100 and 0x88a8 there before tc runs (skb_vlan_untag() in
 * __netif_receive_skb_core()). A third tag makes the frame malformed. Returns 0 on success,
 * otherwise an enum weft_parse.
 */
static __always_inline int parse_tags(struct __sk_buff *skb, struct weft_key *key,
				      const struct frame *frame, void **l3, __u16 *type,
				      bool skb_tag_is_underlay)
{
	__u64 tags = 0;
	int tags_left = 2;
	__u32 at;

	if (skb->vlan_present && !skb_tag_is_underlay) {
		__u16 tpid = bpf_ntohs(skb->vlan_proto);

		if (!is_tpid(tpid))
			return WEFT_UPCALL;
		tags = tag_word(tpid, skb->vlan_tci);
		tags_left = 1;
	}
	while (tags_left && is_tpid(*type)) {
		if (*l3 + TAG_LEN > frame->end)
			return not_linear(frame, *l3 + TAG_LEN);
		tags = tags << WEFT_VLAN_TCI_SHIFT | tag_word(*type, be16(*l3));
		*type = be16(*l3 + 2);
		*l3 += TAG_LEN;
		tags_left--;
	}
	/* The outer tag is in the upper half of the word, even if it is the only one. */
	key->vlan = tags >> WEFT_VLAN_TCI_SHIFT ? tags : tags << WEFT_VLAN_TCI_SHIFT;
	at = *l3 - frame->data;
	hide_bounds(at, 0x1f);
	*l3 = frame->data + at;
	return is_tpid(*type) ? WEFT_MALFORMED : 0;
}

/*
 * Parses an IEEE 802.3 frame, which has a length instead of an EtherType. Frames with a SNAP header
 * are punted, because only userspace can rewrite them and update the length.
 */
static __always_inline int parse_llc(const struct frame *frame, const void *llc)
{
	if (frame->len - (llc - frame->data) < SNAP_LEN)
		return WEFT_PARSED;
	if (llc + SNAP_LEN > frame->end)
		return WEFT_PULL;
	return be64(llc) >> 16 == SNAP_PREFIX ? WEFT_UPCALL : WEFT_PARSED;
}

/*
 * Parses a frame. On entry the port and the tunnel are set in `key`, and its other words are 0. The
 * arguments after `key` are the members of struct inner_frame. It is a global function, because the
 * verifier checks a global function only once, not once per call.
 */
__weak int parse_frame(struct __sk_buff *skb, struct weft_key *key, __u32 offset, __u32 skip,
		       bool skb_tag_is_underlay)
{
	struct frame frame = {
		.skb = skb,
		.end = (void *)(long)skb->data_end,
	};
	void *l3;
	__u16 type;
	int result;

	if (!key || offset > MAX_OFFSET || skip > 2 * TAG_LEN || offset > skb->len)
		return WEFT_UPCALL;
	/* The compiler may use a copy of `offset` whose check the verifier did not see. */
	hide_bounds(offset, MAX_OFFSET);
	frame.offset = offset;
	frame.data = (void *)(long)skb->data + offset;
	frame.len = skb->len - offset;
	l3 = frame.data + ETH_LEN + skip;
	/* The first comparison is redundant, but proves to the verifier that MACs can be read. */
	if (frame.data + ETH_LEN > frame.end || l3 > frame.end)
		return not_linear(&frame, l3);
	key->eth_src = be64(frame.data + 6) & ~0xffffULL;
	type = be16(l3 - 2);
	if ((skb->vlan_present && !skb_tag_is_underlay) || is_tpid(type)) {
		result = parse_tags(skb, key, &frame, &l3, &type, skb_tag_is_underlay);
		if (result)
			return result;
	}
	/* IPv6 first: the most frequent case, because parse_guest_frame() handles plain IPv4. */
	if (type == ETHERTYPE_IP6) {
		key->eth_dst = be48(frame.data) | ETHERTYPE_IP6;
		return parse_ip6(key, &frame, l3);
	}
	if (type < MIN_ETHERTYPE) {
		key->eth_dst = be48(frame.data) | WEFT_ETHERTYPE_NONE;
		return parse_llc(&frame, l3);
	}
	key->eth_dst = be48(frame.data) | type;
	switch (type) {
	case ETHERTYPE_IP4:
		return parse_ip4(key, &frame, l3);
	case ETHERTYPE_ARP:
	case ETHERTYPE_RARP:
		return parse_arp(key, &frame, l3);
	default:
		return WEFT_PARSED;
	}
}

/*
 * Pulls the headers into the linear part and parses again from the start. It clears the result of
 * the first attempt, because the sender may have changed pages that it shares with the skb. The
 * second round pulls the whole packet, for headers longer than PULL_LEN.
 */
__weak int parse_pulled(struct __sk_buff *skb, struct weft_key *key,
			const struct inner_frame *inner)
{
	__u64 port;
	__u32 limit = PULL_LEN + MAX_OFFSET;
	__u32 pull_len = skb->len < limit ? skb->len : limit;
	int i, result = WEFT_PULL;

	if (!key || !inner)
		return WEFT_UPCALL;
	port = key->port & (~0xffffffffULL | WEFT_TUNNEL | WEFT_TUNNEL6);
#pragma clang loop unroll(disable)
	for (i = 0; i < 2 && result == WEFT_PULL; i++) {
		if (bpf_skb_pull_data(skb, pull_len))
			return WEFT_UPCALL;
		__builtin_memset(key, 0, __builtin_offsetof(struct weft_key, tun_id));
		key->port = port;
		result = parse_frame(skb, key, inner->offset, inner->skip,
				     inner->skb_tag_is_underlay);
		pull_len = skb->len;
	}
	return result == WEFT_PULL ? WEFT_UPCALL : result;
}

/* EtherType, version and header length of IPv4 without options. The mask leaves out TOS. */
#define PLAIN_IP4 0x08004500
#define PLAIN_IP4_MASK 0xffffff00

/*
 * Whether this is the most frequent case: untagged IPv4 without options, no fragment, and with the
 * headers of Ethernet and IPv4 in the linear part.
 */
static __always_inline bool is_plain(struct __sk_buff *skb, const struct inner_frame *inner,
				     struct frame *frame)
{
	__u32 offset = inner->offset;
	const void *type;

	if (offset > MAX_OFFSET || inner->skip ||
	    (skb->vlan_present && !inner->skb_tag_is_underlay))
		return false;
	frame->skb = skb;
	frame->data = (void *)(long)skb->data + offset;
	frame->end = (void *)(long)skb->data_end;
	frame->offset = offset;
	frame->len = skb->len - offset;
	type = frame->data + ETH_LEN - 2;
	return frame->data + ETH_LEN + IP4_LEN <= frame->end &&
	       (*(const __u32 *)type & bpf_htonl(PLAIN_IP4_MASK)) == bpf_htonl(PLAIN_IP4) &&
	       !(*(const __u16 *)(type + 2 + 6) & bpf_htons(IP4_OFFSET | IP4_MORE));
}

/* As parse_frame(), for a frame that is_plain() accepts. */
static __always_inline int parse_plain(struct weft_key *key, const struct frame *frame)
{
	const __u8 *ip = frame->data + ETH_LEN;
	struct l4_header l4 = { .at = (void *)ip + IP4_LEN, .proto = ip[9] };
	__u32 total = be16(ip + 2);

	key->eth_dst = be48(frame->data) | ETHERTYPE_IP4;
	key->eth_src = be48(frame->data + 6);
	if (total < IP4_LEN || total > frame->len - ETH_LEN)
		return WEFT_MALFORMED;
	key->port |= WEFT_L3_IP4;
	key->ip = ip_word(l4.proto, ip[1], ip[8], FRAG_WHOLE, 0);
	key->l3[0] = be64(ip + 12);
	l4.len = total - IP4_LEN;
	return parse_l4(key, frame, &l4);
}

/*
 * Parses the frame that `inner` describes. The port and the tunnel are already set in the key, and
 * its other words are 0, except `eth_dst`, `eth_src`, `ip` and `l3[0]`, which may be uninitialized.
 * The path for plain IPv4 in parse_frame() is repeated here inline, which more than halves the cost
 * of that most frequent case.
 */
static __always_inline int parse_guest_frame(struct __sk_buff *skb, struct weft_key *key,
				       const struct inner_frame *inner)
{
	struct inner_frame passed;
	struct frame frame;
	int result;

	if (is_plain(skb, inner, &frame)) {
		result = parse_plain(key, &frame);
	} else {
		key->eth_dst = 0;
		key->eth_src = 0;
		key->ip = 0;
		key->l3[0] = 0;
		result = parse_frame(skb, key, inner->offset, inner->skip,
				     inner->skb_tag_is_underlay);
	}
	if (result != WEFT_PULL)
		return result;
	/* Not `inner` itself: its constant members would then need memory on all paths. */
	passed = *inner;
	return parse_pulled(skb, key, &passed);
}

/*
 * Parses a frame that arrived on the port `in_port`, by `tunnel` unless that is NULL. The key is
 * complete if the result is WEFT_PARSED.
 */
static __always_inline int parse(struct __sk_buff *skb, struct weft_key *key, __u32 in_port,
				 const struct tunnel *tunnel)
{
	const struct inner_frame whole = {};

	key->port = (__u64)in_port << WEFT_IN_PORT_SHIFT;
	key->vlan = 0;
	key->transport = 0;
	__builtin_memset(&key->l3[1], 0,
			 sizeof(*key) - __builtin_offsetof(struct weft_key, l3[1]));
	if (tunnel)
		key_tunnel(key, tunnel);
	return parse_guest_frame(skb, key, &whole);
}
