/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * What comes by the underlay: outer headers are read where they are, and what the key says of them
 * is what the user datapath says of the same packet. A UDP socket tells neither TTL nor "don't
 * fragment", so they are 0 there and here. Whatever is unusual is left to userspace: it decides,
 * and counts.
 *
 * An outer UDP checksum is not verified here: RFC 7348 section 5 and RFC 8926 section 3.3 leave that
 * to the receiver, what is inside has checksums of its own, and summing the payload would cost more
 * than all the rest. What a device has verified passes on to the inner frame in the way in which
 * the kernel's own tunnels do it.
 */
#pragma once

#include "actions.h"
#include "endpoint_lookup.h"

#define VXLAN_LEN 8
#define GENEVE_LEN 8
#define GRE_LEN 4
#define ETHERTYPE_TEB 0x6558

/* Of tun_flags in struct weft_key. */
#define TUN_FLAG_DF (1ULL << WEFT_TUN_FLAG_DF_SHIFT)
#define TUN_FLAG_KEY (1ULL << WEFT_TUN_FLAG_KEY_SHIFT)
#define TUN_PRESENT_PORTS (1ULL << WEFT_TUN_PRESENT_PORTS_SHIFT)

/* Where a tunnelled frame is, and from whom it came. */
struct arrival {
	struct inner_frame inner;
	__u32 endpoint;		/* or WEFT_NO_ENDPOINT */
	__u8 tos;		/* of the outer header */
	__u8 proto;		/* of the outer header */
	__u8 tags;		/* how many are the underlay's */
};

/* What the outer IP header says, and where it ends. */
struct outer_ip {
	void *l4;
	__u32 len;	/* of what follows it */
	__u8 proto;
	__u8 tos;
	__u8 ttl;
	bool dont_fragment;
};

/* A header without options, whose checksum is right, of a whole packet that nothing follows. */
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

/* The class of the end point that sends from there to here, and its number; 0: there is none. */
static __always_inline struct weft_class *find_sender(const void *ip, bool is_ip6, __u8 proto,
						    __be16 port, __u32 *number)
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
#pragma clang loop unroll(disable)
	for (i = 0; i < MAX_SOURCES && next; i++) {
		*number = next - 1;
		endpoint = bpf_map_lookup_elem(&weft_endpoints, number);
		if (!endpoint)
			return 0;
		kind = endpoint->class;
		class = bpf_map_lookup_elem(&weft_classes, &kind);
		if (!class)
			return 0;
		if (is_from(endpoint, class, remote, local, by, is_ip6))
			return class;
		next = endpoint->next;
	}
	return 0;
}

enum arrival_kind {
	/* It is nothing that a program knows: the host's own stack gets it. */
	ARRIVED_NOT_OURS,
	/* Userspace has to read it. */
	ARRIVED_SLOW_PATH,
	/* Tags that are of no link: userspace counts it, and the host's own stack gets it. */
	ARRIVED_OTHER_LINK,
	ARRIVED,
};

/* Ethernet and two tags. */
#define LINK_LEN (ETH_LEN + 2 * TAG_LEN)

/* What is not for a program: GRE to one of our tunnels, from whomever, is for userspace. */
static __always_inline int classify_other(const void *data, const void *end, bool is_ip6)
{
	const void *ip = data + ETH_LEN;
	struct weft_gre_local to = {};

	if (ip + (is_ip6 ? IP6_LEN : IP4_LEN) > end)
		return ARRIVED_NOT_OURS;
	if (((const __u8 *)ip)[is_ip6 ? 6 : 9] != PROTO_GRE)
		return ARRIVED_NOT_OURS;
	to.is_ip6 = is_ip6;
	if (is_ip6)
		__builtin_memcpy(to.local, ip + 24, sizeof(to.local));
	else
		to.local[0] = *(const __u32 *)(ip + 16);
	return bpf_map_lookup_elem(&weft_gre_locals, &to) ? ARRIVED_SLOW_PATH : ARRIVED_NOT_OURS;
}

/* The header of a tunnel over UDP; 0 or its length, with what it says in the key. */
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
	if (type != WEFT_GENEVE)
		return 0;
	/* OVN's option alone, which is critical; or none. */
	if (first != bpf_htonl(0x02400000 | ETHERTYPE_TEB))
		return first == bpf_htonl(ETHERTYPE_TEB) ? GENEVE_LEN : 0;
	if ((const void *)tunnel + GENEVE_LEN + OPTION_LEN > end ||
	    be32(tunnel + GENEVE_LEN) != OPTION)
		return 0;
	word = be32(tunnel + GENEVE_LEN + 4);
	/* Port 0 is none, and the highest bit is reserved. */
	if (!(word & 0xffff) || word >> 31)
		return 0;
	key->tun_metadata = word;
	key->tun_flags |= TUN_PRESENT_PORTS;
	return GENEVE_LEN + OPTION_LEN;
}

static __always_inline __u32 read_gre(const __u8 *tunnel, const void *end, bool has_key,
				      struct weft_key *key)
{
	if ((const void *)tunnel + GRE_LEN + 4 > end)
		return 0;
	if (be32(tunnel) != ((has_key ? 0x20000000 : 0) | ETHERTYPE_TEB))
		return 0;
	if (!has_key)
		return GRE_LEN;
	key->tun_id = be32(tunnel + GRE_LEN);
	return GRE_LEN + 4;
}

/* `key` is 0 in all. */
static __always_inline int read_tunnel(struct __sk_buff *skb, struct weft_key *key,
				       struct arrival *arrival, bool is_ip6)
{
	void *data = (void *)(long)skb->data, *end = (void *)(long)skb->data_end, *tunnel;
	__u32 number = 0, header, udp_len = 0;
	struct weft_class *class;
	struct outer_ip ip;
	__be16 port = 0;

	if (!(is_ip6 ? read_ip6(skb, data, end, &ip) : read_ip4(skb, data, end, &ip)))
		return classify_other(data, end, is_ip6);
	if (ip.proto == PROTO_UDP) {
		port = *(const __be16 *)(ip.l4 + 2);
		if (be16(ip.l4 + 4) != ip.len)
			return ARRIVED_NOT_OURS;
		udp_len = UDP_LEN;
	} else if (ip.proto != PROTO_GRE) {
		return ARRIVED_NOT_OURS;
	}
	tunnel = ip.l4 + udp_len;
	class = find_sender(data + ETH_LEN, is_ip6, ip.proto, port, &number);
	arrival->endpoint = class ? number : WEFT_NO_ENDPOINT;
	arrival->tos = ip.tos;
	arrival->proto = ip.proto;
	if (!class)
		return classify_other(data, end, is_ip6);
	key->port = (__u64)class->in_port << 32 | WEFT_TUNNEL;
	key->tun_flags = TUN_FLAG_KEY | (__u64)ip.tos << WEFT_TUN_TOS_SHIFT;
	if (ip.proto == PROTO_UDP) {
		/*
		 * Without a checksum over IPv6, only where both ends have agreed on that (RFC 6935
		 * section 5): userspace's socket refuses the others.
		 */
		if (is_ip6 && class->flags & WEFT_CLASS_CHECKSUM && !be16(ip.l4 + 6))
			return ARRIVED_SLOW_PATH;
		header = read_over_udp(tunnel, end, class->tunnel, key);
	} else {
		if (class->tunnel != WEFT_GRE)
			return ARRIVED_SLOW_PATH;
		if (!(class->flags & WEFT_CLASS_KEY))
			key->tun_flags &= ~TUN_FLAG_KEY;
		key->tun_flags |= (__u64)ip.ttl << WEFT_TUN_TTL_SHIFT;
		if (ip.dont_fragment)
			key->tun_flags |= TUN_FLAG_DF;
		header = read_gre(tunnel, end, class->flags & WEFT_CLASS_KEY, key);
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
	arrival->inner.offset = ETH_LEN + (is_ip6 ? IP6_LEN : IP4_LEN) + udp_len + header;
	return ARRIVED;
}

/*
 * Global, as read_link() is: what the verifier knows of the ways through it, which are many, would make it
 * go through all that follows as many times. IPv4 is worth that: what a call takes is saved.
 */
__weak int read_tunnel6(struct __sk_buff *skb, struct weft_key *key, struct arrival *arrival)
{
	if (!key || !arrival)
		return ARRIVED_NOT_OURS;
	return read_tunnel(skb, key, arrival, true);
}

/* A link by one tag, or by two. */
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
 * A tagged frame: flow::TagLinks::find. `key` is 0 in all. A tag that is not in the metadata is of
 * a TPID that helpers do not take off.
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
		/* Too short for a guest's frame: userspace says so. */
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
	arrival->inner.ignore_skb_tag = true;
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
	key->port = (__u64)link->in_port << 32 | WEFT_TUNNEL;
	key->tun_id = link->tun_id;
	key->tun_flags = link->tun_flags;
	return is_odd ? ARRIVED_SLOW_PATH : ARRIVED;
}

/*
 * Joins the outer ECN field into the key's (RFC 6040 section 4.2), and says whether that changed
 * it; negative for a frame that must be dropped.
 */
static __always_inline int join_ecn(struct weft_key *key, __u8 outer)
{
	__u8 inner = key->ip >> 48 & 3, joined = inner;

	outer &= 3;
	if (!outer || !is_ip(key))
		return 0;
	if (outer == 3) {
		if (!inner)
			return -1;
		joined = 3;
	} else if (outer == 1 && inner == 2) {
		joined = 1;
	}
	key->ip = (key->ip & ~(3ULL << 48)) | (__u64)joined << 48;
	return joined != inner;
}

/*
 * The IP packet of a super-packet ends where the frame ends. Otherwise it is a train of datagrams
 * that the kernel has joined, of which each has a frame.
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
	/* The packet is as it was. */
	DECAP_REFUSED = 1,
	DECAP_LOST = 2,
};

/*
 * Takes the outer headers off. `has_protocol` says afterwards whether the skb's protocol, which is
 * still that of the outer header, is that of the frame. A super-packet has to have it: otherwise
 * devices would look for another header when they send it.
 */
static __always_inline int remove_outer_headers(struct __sk_buff *skb, const struct weft_key *key,
				    __u32 offset, bool *has_protocol)
{
	__u64 flags = BPF_F_ADJ_ROOM_FIXED_GSO | BPF_F_ADJ_ROOM_NO_CSUM_RESET, other = 0;
	bool is_ip6 = key->port & WEFT_TUNNEL6;
	const void *data = (void *)(long)skb->data, *end = (void *)(long)skb->data_end;
	__u8 ethernet[ETH_LEN] __attribute__((aligned(8)));
	__be16 type;

	/* It has been read there. */
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
		/* Linux knows these flags from 6.3 on. */
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
