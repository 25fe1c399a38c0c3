/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Decapsulation. The outer headers are parsed in place, and the key gets the same tunnel fields as
 * in the user datapath. A UDP socket reports neither TTL nor "don't fragment", so for UDP tunnels
 * both are 0 here, too. Unusual packets go to userspace, which decides about them and counts them.
 *
 * The outer UDP checksum is not verified: RFC 7348 section 5 and RFC 8926 section 3.3 leave that to
 * the receiver, the inner packet has its own checksums, and summing the payload would cost more
 * than all the rest. If a device has verified checksums, bpf_csum_level() passes that state on to
 * the inner frame.
 */
#pragma once

#include "actions.h"
#include "endpoint_lookup.h"

#define VXLAN_LEN 8
#define GENEVE_LEN 8
#define GRE_LEN 4

/* Bits of tun_flags in struct weft_key. */
#define TUN_FLAG_DF (1ULL << WEFT_TUN_FLAG_DF_SHIFT)
#define TUN_FLAG_KEY (1ULL << WEFT_TUN_FLAG_KEY_SHIFT)
#define TUN_PRESENT_PORTS (1ULL << WEFT_TUN_PRESENT_PORTS_SHIFT)

/* A packet from the underlay: where its inner frame is, and which end point sent it. */
struct arrival {
	struct inner_frame inner;
	__u32 endpoint;		/* or WEFT_NO_ENDPOINT */
	__u8 tos;		/* of the outer header */
	__u8 proto;		/* of the outer header */
	__u8 tags;		/* number of tags that belong to the underlay */
};

/* The outer IP header. */
struct outer_ip {
	void *l4;
	__u32 len;	/* of the IP payload */
	__u8 proto;
	__u8 tos;
	__u8 ttl;
	bool dont_fragment;
};

/*
 * Reads an outer IPv4 header. Accepts only an unfragmented packet without options and padding, with
 * a valid checksum.
 */
static __always_inline bool read_ip4(struct __sk_buff *skb, void *data, void *end,
				     struct outer_ip *ip)
{
	const __u8 *header = data + ETH_LEN;
	__u32 total;
	__u64 sum;

	if (data + ETH_LEN + IP4_LEN + UDP_LEN > end)
		return false;
	total = be16(header + 2);
	if (header[0] != 0x45 || be16(header + 6) & (IP4_OFFSET | IP4_MORE) ||
	    total + ETH_LEN != skb->len)
		return false;
	sum = (__u64) * (const __u32 *)header + *(const __u32 *)(header + 4) +
	      *(const __u32 *)(header + 8) + *(const __u32 *)(header + 12) +
	      *(const __u32 *)(header + 16);
	if (fold(sum) != 0xffff)
		return false;
	ip->l4 = data + ETH_LEN + IP4_LEN;
	ip->len = total - IP4_LEN;
	ip->proto = header[9];
	ip->tos = header[1];
	ip->ttl = header[8];
	ip->dont_fragment = header[6] & 0x40;
	return true;
}

static __always_inline bool read_ip6(struct __sk_buff *skb, void *data, void *end,
				     struct outer_ip *ip)
{
	const __u8 *header = data + ETH_LEN;
	__u32 first;

	if (data + ETH_LEN + IP6_LEN + UDP_LEN > end)
		return false;
	first = be32(header);
	ip->len = be16(header + 4);
	if (first >> 28 != 6 || ip->len + ETH_LEN + IP6_LEN != skb->len)
		return false;
	ip->l4 = data + ETH_LEN + IP6_LEN;
	ip->proto = header[6];
	ip->tos = first >> 20;
	ip->ttl = header[7];
	ip->dont_fragment = false;
	return true;
}

/* End points of a chain that find_sender() compares inline. Most chains have no more. */
#define FREQUENT_SENDERS 2

/*
 * Searches the rest of a long hash chain, from `next` on, for the end point that sent a packet.
 * Returns the number of its class plus 1, or 0 if there is none.
 */
static __always_inline int find_rare_sender(struct __sk_buff *skb, __u32 next, __u32 by,
					    __u32 *number, bool is_ip6)
{
	const void *ip = (void *)(long)skb->data + ETH_LEN, *end = (void *)(long)skb->data_end;
	const __u32 *remote = ip + (is_ip6 ? 8 : 12), *local = ip + (is_ip6 ? 24 : 16);
	struct weft_endpoint *endpoint;
	struct weft_class *class;
	__u32 from, kind;
	__u64 bits;
	int i;

	if (!number || ip + (is_ip6 ? IP6_LEN : IP4_LEN) > end)
		return 0;
#pragma clang loop unroll(disable)
	for (i = FREQUENT_SENDERS; i < WEFT_MAX_SOURCES && next; i++) {
		from = next - 1;
		endpoint = bpf_map_lookup_elem(&weft_endpoints, &from);
		if (!endpoint)
			return 0;
		kind = endpoint->class;
		class = bpf_map_lookup_elem(&weft_classes, &kind);
		if (!class)
			return 0;
		bits = diff_sender(endpoint, class, remote, local, by, is_ip6);
		/* Keeps the compiler from a branch per word, each a state for the verifier. */
		barrier_var(bits);
		if (!bits) {
			*number = from;
			return kind + 1;
		}
		next = endpoint->next;
	}
	return 0;
}

/* Global functions, because the verifier checks their loop only once, not once per call. */
__weak int find_rare_sender4(struct __sk_buff *skb, __u32 next, __u32 by, __u32 *number)
{
	return find_rare_sender(skb, next, by, number, false);
}

__weak int find_rare_sender6(struct __sk_buff *skb, __u32 next, __u32 by, __u32 *number)
{
	return find_rare_sender(skb, next, by, number, true);
}

/* The class and number of the end point that sent a packet; NULL if there is none. */
static __always_inline struct weft_class *find_sender(struct __sk_buff *skb, const void *ip,
						      bool is_ip6, __u8 proto, __be16 port,
						      __u32 *number)
{
	const __u32 *remote = ip + (is_ip6 ? 8 : 12), *local = ip + (is_ip6 ? 24 : 16);
	__u32 by = carrier(is_ip6, proto, port), *head, next, kind;
	struct weft_endpoint *endpoint;
	struct weft_class *class;
	int i;

	head = sources_of(remote, local, by, is_ip6);
	if (!head)
		return 0;
	next = *head;
#pragma clang loop unroll(full)
	for (i = 0; i < FREQUENT_SENDERS; i++) {
		if (!next)
			return 0;
		*number = next - 1;
		endpoint = bpf_map_lookup_elem(&weft_endpoints, number);
		if (!endpoint)
			return 0;
		kind = endpoint->class;
		class = bpf_map_lookup_elem(&weft_classes, &kind);
		if (!class)
			return 0;
		if (!diff_sender(endpoint, class, remote, local, by, is_ip6))
			return class;
		next = endpoint->next;
	}
	if (!next)
		return 0;
	kind = is_ip6 ? find_rare_sender6(skb, next, by, number) :
			find_rare_sender4(skb, next, by, number);
	if (!kind)
		return 0;
	kind--;
	return bpf_map_lookup_elem(&weft_classes, &kind);
}

enum arrival_kind {
	/* Not a packet of weft's tunnels or links: it belongs to the host's network stack. */
	ARRIVED_NOT_OURS,
	/* Userspace has to parse it. */
	ARRIVED_SLOW_PATH,
	/* Its sender is not an end point that the programs or userspace know. */
	ARRIVED_FROM_UNKNOWN,
	/* Tags of an unknown link: it belongs to the host, and userspace counts a copy. */
	ARRIVED_OTHER_LINK,
	ARRIVED,
};

/* Ethernet header and two tags. */
#define LINK_LEN (ETH_LEN + 2 * TAG_LEN)

/*
 * Finds the transport header of an IP packet with unusual headers. Returns false if it cannot, or
 * if the packet is UDP but does not contain the UDP header.
 */
static __always_inline bool find_outer_l4(struct __sk_buff *skb, const __u8 *ip, void *end,
					  bool is_ip6, struct l4_header *l4)
{
	struct upper_layer upper = {};
	__u8 frag = FRAG_WHOLE;

	if (is_ip6) {
		if (walk_extensions(skb, ETH_LEN, IP6_LEN + be16(ip + 4), &upper))
			return false;
		hide_bounds(upper.at, MAX_L4_OFFSET);
		l4->proto = upper.proto;
		l4->at = (void *)ip + upper.at;
		frag = upper.frag;
	} else {
		l4->proto = ip[9];
		l4->at = (void *)ip + (ip[0] & 0x0f) * 4;
		if (be16(ip + 6) & IP4_OFFSET)
			frag = WEFT_FRAG_LATER;
	}
	return l4->proto != PROTO_UDP || (frag != WEFT_FRAG_LATER && l4->at + UDP_LEN <= end);
}

/*
 * Classifies a packet that read_tunnel() cannot read, or whose sender is not in weft_sources. In
 * the former case the sender has not been looked up yet.
 */
static __always_inline int classify_unusual(struct __sk_buff *skb, bool is_ip6)
{
	void *end = (void *)(long)skb->data_end;
	const __u8 *ip = (void *)(long)skb->data + ETH_LEN;
	struct weft_local to = {};
	struct l4_header l4 = {};
	__u32 *state, number, i;
	__be16 port = 0;

	if ((void *)ip + (is_ip6 ? IP6_LEN : IP4_LEN) > end ||
	    !find_outer_l4(skb, ip, end, is_ip6, &l4))
		return ARRIVED_NOT_OURS;
	if (l4.proto == PROTO_UDP)
		port = *(const __be16 *)(l4.at + 2);
	else if (l4.proto != PROTO_GRE)
		return ARRIVED_NOT_OURS;
	l4.proto = forget(l4.proto);
	to.carrier = carrier(is_ip6, l4.proto, port);
#pragma clang loop unroll(full)
	for (i = 0; i < 4; i++)
		if (is_ip6 || !i)
			to.local[i] = *(const __u32 *)(ip + (is_ip6 ? 24 : 16) + i * 4);
	state = bpf_map_lookup_elem(&weft_locals, &to);
	if (!state)
		return ARRIVED_NOT_OURS;
	/* A capture of drops needs the packet in userspace. */
	if (*(volatile __u32 *)state == WEFT_LOCAL_COMPLETE &&
	    !(weft_config.watch_drops && has_daemon()) &&
	    !find_sender(skb, ip, is_ip6, l4.proto, port, &number))
		return ARRIVED_FROM_UNKNOWN;
	return l4.proto == PROTO_GRE ? ARRIVED_SLOW_PATH : ARRIVED_NOT_OURS;
}

/* Global functions, so that the verifier checks classify_unusual() only once per address family. */
__weak int classify_other4(struct __sk_buff *skb)
{
	return classify_unusual(skb, false);
}

__weak int classify_other6(struct __sk_buff *skb)
{
	return classify_unusual(skb, true);
}

static __always_inline int classify_other(struct __sk_buff *skb, bool is_ip6)
{
	return is_ip6 ? classify_other6(skb) : classify_other4(skb);
}

/* Parses a VXLAN or Geneve header into the key. Returns its length, or 0 if it is unusual. */
static __always_inline __u32 read_over_udp(const __u8 *tunnel, const void *end, __u8 type,
					   struct weft_key *key)
{
	__be32 first;
	__u32 word;

	if ((const void *)tunnel + GENEVE_LEN > end)
		return 0;
	first = *(const __be32 *)tunnel;
	key->tun_id = be32(tunnel + 4) >> 8;
	if (type == WEFT_VXLAN)
		return first & bpf_htonl(0x08000000) ? VXLAN_LEN : 0;
	/* Geneve: either OVN's critical option alone, or no option. */
	if (first != bpf_htonl(0x02400000 | ETHERTYPE_TEB))
		return first == bpf_htonl(ETHERTYPE_TEB) ? GENEVE_LEN : 0;
	if ((const void *)tunnel + GENEVE_LEN + OPTION_LEN > end ||
	    be32(tunnel + GENEVE_LEN) != OPTION)
		return 0;
	word = be32(tunnel + GENEVE_LEN + 4);
	/* Egress port 0 is invalid, and the highest bit is reserved. */
	if (!(word & 0xffff) || word >> 31)
		return 0;
	key->tun_metadata = word;
	key->tun_flags |= TUN_PRESENT_PORTS;
	return GENEVE_LEN + OPTION_LEN;
}

static __always_inline __u32 read_gre(const __u8 *tunnel, const void *end,
				      const struct weft_class *class, struct weft_key *key)
{
	const __u32 first_keyed = 0x20000000 | ETHERTYPE_TEB;

	if ((const void *)tunnel + GRE_LEN + 4 > end)
		return 0;
	if (class->flags & WEFT_CLASS_KEY) {
		if (be32(tunnel) != first_keyed)
			return 0;
		key->tun_id = be32(tunnel + GRE_LEN);
		return GRE_LEN + 4;
	}
	if (class->tunnel == (WEFT_OVER_GRE | WEFT_NVGRE)) {
		if (be32(tunnel) != first_keyed)
			return 0;
		/* The lowest 8 bits are the FlowID. */
		key->tun_id = be32(tunnel + GRE_LEN) >> 8;
		return GRE_LEN + 4;
	}
	if (be32(tunnel) != ETHERTYPE_TEB)
		return 0;
	key->tun_flags &= ~TUN_FLAG_KEY;
	return GRE_LEN;
}

/* Parses the outer headers of a tunnel packet into a key that is all 0. */
static __always_inline int read_tunnel(struct __sk_buff *skb, struct weft_key *key,
				       struct arrival *arrival, bool is_ip6)
{
	void *data = (void *)(long)skb->data, *end = (void *)(long)skb->data_end;
	__u32 number = 0, header, outer = ETH_LEN + (is_ip6 ? IP6_LEN : IP4_LEN);
	struct weft_class *class;
	struct outer_ip ip;
	__be16 port = 0;

	if (!(is_ip6 ? read_ip6(skb, data, end, &ip) : read_ip4(skb, data, end, &ip)))
		return classify_other(skb, is_ip6);
	if (ip.proto == PROTO_UDP) {
		port = *(const __be16 *)(ip.l4 + 2);
		if (be16(ip.l4 + 4) != ip.len)
			return classify_other(skb, is_ip6);
	} else if (ip.proto != PROTO_GRE) {
		/* IPv6 may have extension headers in front of the tunnel header. */
		return is_ip6 && ip.proto != PROTO_TCP ? classify_other(skb, is_ip6)
						       : ARRIVED_NOT_OURS;
	}
	class = find_sender(skb, data + ETH_LEN, is_ip6, ip.proto, port, &number);
	arrival->endpoint = class ? number : WEFT_NO_ENDPOINT;
	arrival->tos = ip.tos;
	arrival->proto = ip.proto;
	if (!class)
		return classify_other(skb, is_ip6);
	key->port = (__u64)class->in_port << WEFT_IN_PORT_SHIFT | WEFT_TUNNEL;
	key->tun_flags = TUN_FLAG_KEY | (__u64)ip.tos << WEFT_TUN_TOS_SHIFT;
	/*
	 * Tests the class instead of the packet. Both have the same protocol, because find_sender()
	 * compared the carrier, but the verifier does not know that: so it explores find_sender()
	 * once for both protocols.
	 */
	if (class->tunnel < WEFT_OVER_GRE) {
		/*
		 * IPv6 without a UDP checksum is valid only where both ends agreed on it (RFC 6935
		 * section 5). Otherwise userspace's socket rejects it.
		 */
		if (is_ip6 && class->flags & WEFT_CLASS_CHECKSUM && !be16(ip.l4 + 6))
			return ARRIVED_SLOW_PATH;
		header = read_over_udp(ip.l4 + UDP_LEN, end, class->tunnel, key);
		outer += UDP_LEN;
	} else {
		key->tun_flags |= (__u64)ip.ttl << WEFT_TUN_TTL_SHIFT;
		if (ip.dont_fragment)
			key->tun_flags |= TUN_FLAG_DF;
		header = read_gre(ip.l4, end, class, key);
	}
	if (!header)
		return ARRIVED_SLOW_PATH;
	if (is_ip6) {
		key->port |= WEFT_TUNNEL6;
		key->tun_addr[0] = be64(data + ETH_LEN + 8);
		key->tun_addr[1] = be64(data + ETH_LEN + 16);
		key->tun_addr[2] = be64(data + ETH_LEN + 24);
		key->tun_addr[3] = be64(data + ETH_LEN + 32);
	} else {
		key->tun_addr[0] = be64(data + ETH_LEN + 12);
	}
	arrival->inner.offset = outer + header;
	return ARRIVED;
}

/*
 * Global functions such as this one and read_link() keep the verifier from exploring the code that
 * follows once per path through them. For IPv4, read_tunnel() is inlined: the saved call is worth
 * the longer verification.
 */
__weak int read_tunnel6(struct __sk_buff *skb, struct weft_key *key, struct arrival *arrival)
{
	if (!key || !arrival)
		return ARRIVED_NOT_OURS;
	return read_tunnel(skb, key, arrival, true);
}

/* The logical link that uses one or two given tags. */
static __always_inline struct weft_tag_link *link_of(__u16 tpid, __u16 tci, __u16 inner_tpid,
						 __u16 inner_tci)
{
	struct weft_tag_link_key tags = {
		.tpid = tpid,
		.vlan = tci & 0xfff,
		.inner_tpid = inner_tpid,
		.inner_vlan = inner_tci & 0xfff,
	};

	return bpf_map_lookup_elem(&weft_tag_links, &tags);
}

/*
 * Finds the logical link of a tagged frame, as flow::TagLinks::find. `key` is all 0. If the outer
 * tag is not in the skb's metadata, its TPID is one that helpers cannot remove.
 */
__weak int read_link(struct __sk_buff *skb, struct weft_key *key, struct arrival *arrival)
{
	void *data = (void *)(long)skb->data, *end = (void *)(long)skb->data_end;
	bool is_odd = !skb->vlan_present;
	__u16 tpid, tci, type;
	struct weft_tag_link *link;
	void *at = data + ETH_LEN;

	if (!key || !arrival)
		return ARRIVED_NOT_OURS;
	if (at + 2 * TAG_LEN > end) {
		if (bpf_skb_pull_data(skb, skb->len < LINK_LEN ? skb->len : LINK_LEN))
			return ARRIVED_NOT_OURS;
		data = (void *)(long)skb->data;
		end = (void *)(long)skb->data_end;
		at = data + ETH_LEN;
		/* Too short for a guest's frame. */
		if (at + 2 * TAG_LEN > end)
			return ARRIVED_OTHER_LINK;
	}
	type = be16(at - 2);
	if (is_odd) {
		tpid = type;
		tci = be16(at);
		type = be16(at + 2);
		at += TAG_LEN;
	} else {
		tpid = bpf_ntohs(skb->vlan_proto);
		tci = skb->vlan_tci;
	}
	arrival->endpoint = WEFT_NO_ENDPOINT;
	arrival->inner.skb_tag_is_underlay = true;
	arrival->tags = 2;
	arrival->inner.skip = TAG_LEN;
	link = type == ETHERTYPE_VLAN ? link_of(tpid, tci, type, be16(at)) : 0;
	if (!link) {
		arrival->tags = 1;
		arrival->inner.skip = 0;
		link = tpid == ETHERTYPE_VLAN ? link_of(tpid, tci, 0, 0) : 0;
	}
	if (!link)
		return ARRIVED_OTHER_LINK;
	key->port = (__u64)link->in_port << WEFT_IN_PORT_SHIFT | WEFT_TUNNEL;
	key->tun_id = link->tun_id;
	key->tun_flags = link->tun_flags;
	return is_odd ? ARRIVED_SLOW_PATH : ARRIVED;
}

/*
 * Merges the outer ECN field into the key's (RFC 6040 section 4.2). Returns whether the key
 * changed, or a negative number if the frame must be dropped.
 */
static __always_inline int join_ecn(struct weft_key *key, __u8 outer)
{
	/*
	 * A table: one byte for each outer ECN field, 0 in the lowest byte, and in it two bits for
	 * each inner field. With branches instead, the verifier would explore the code that follows
	 * once per branch.
	 */
	const __u32 joined_fields = 0xfce4d4e4;
	__u32 inner = key->ip >> WEFT_IP_ECN_SHIFT & 3, joined;

	outer &= 3;
	if (!outer || !is_ip(key))
		return 0;
	if (outer == 3 && !inner)
		return -1;
	joined = joined_fields >> (outer * 8 + inner * 2) & 3;
	key->ip ^= (__u64)(joined ^ inner) << WEFT_IP_ECN_SHIFT;
	return joined ^ inner;
}

/*
 * Whether a super-packet contains one inner packet, which then ends where the skb ends. Otherwise
 * GRO has joined several outer datagrams, each with its own inner frame.
 */
static __always_inline bool is_one_packet(struct __sk_buff *skb, const struct weft_key *key,
					  __u32 l3)
{
	__u32 shape = l3_shape(key), len = skb->len - l3;
	__be16 total;

	if (shape == WEFT_L3_IP4)
		return !bpf_skb_load_bytes(skb, l3 + 2, &total, sizeof(total)) &&
		       bpf_ntohs(total) == len;
	if (shape == WEFT_L3_IP6)
		return !bpf_skb_load_bytes(skb, l3 + 4, &total, sizeof(total)) &&
		       bpf_ntohs(total) + IP6_LEN == len;
	return false;
}

enum decap_result {
	DECAP_OK = 0,
	/* The packet is unchanged, so it can still go to userspace. */
	DECAP_REFUSED = 1,
	/* The packet has been changed: it has to be dropped. */
	DECAP_LOST = 2,
};

/*
 * Removes the outer headers. skb->protocol stays that of the outer header unless a flag of the
 * helper changes it; `has_protocol` returns whether it is that of the inner frame. A super-packet
 * needs that, because devices segment by skb->protocol.
 */
static __always_inline int remove_outer_headers(struct __sk_buff *skb, const struct weft_key *key,
				    __u32 offset, bool *has_protocol)
{
	__u64 flags = BPF_F_ADJ_ROOM_FIXED_GSO | BPF_F_ADJ_ROOM_NO_CSUM_RESET, other = 0;
	bool is_ip6 = key->port & WEFT_TUNNEL6;
	const void *data = (void *)(long)skb->data, *end = (void *)(long)skb->data_end;
	__u8 ethernet[ETH_LEN] __attribute__((aligned(8)));
	__be16 type;

	/* parse_guest_frame() has read the frame at this offset. */
	hide_bounds(offset, MAX_OFFSET);
	data += offset;
	if (data + ETH_LEN > end)
		return DECAP_REFUSED;
	*(any64 *)ethernet = *(const any64 *)data;
	*(any32 *)(ethernet + 8) = *(const any32 *)(data + 8);
	type = *(const any16 *)(data + 12);
	*(any16 *)(ethernet + 12) = type;
	*has_protocol = type == (is_ip6 ? bpf_htons(ETHERTYPE_IP6) : bpf_htons(ETHERTYPE_IP4));
	if (!*has_protocol) {
		/* These flags exist since Linux 6.3. */
		if (type == bpf_htons(ETHERTYPE_IP4))
			other = BPF_F_ADJ_ROOM_DECAP_L3_IPV4;
		if (type == bpf_htons(ETHERTYPE_IP6))
			other = BPF_F_ADJ_ROOM_DECAP_L3_IPV6;
		*has_protocol = other && !bpf_skb_adjust_room(skb, -(__s32)offset,
							      BPF_ADJ_ROOM_MAC, flags | other);
		if (*has_protocol)
			goto taken;
		if (skb->gso_size)
			return DECAP_REFUSED;
	}
	if (bpf_skb_adjust_room(skb, -(__s32)offset, BPF_ADJ_ROOM_MAC, flags))
		return DECAP_REFUSED;
taken:
	bpf_csum_level(skb, BPF_CSUM_LEVEL_DEC);
	return bpf_skb_store_bytes(skb, 0, ethernet, ETH_LEN, 0) ? DECAP_LOST : DECAP_OK;
}
