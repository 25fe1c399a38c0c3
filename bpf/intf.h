/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * The layouts that programs and daemon share. Rust's are generated from these when it is built, and
 * crates/datapath-bpf/src/layout.rs refuses to compile when its own idea of a key differs.
 */
#pragma once

/*
 * What the kernel knows of a frame: words of flow::FlowKey (crates/flow/src/field.rs), in the same
 * byte order, that of the host. Fields that exclude one another share words; which of them are
 * there is the *shape*. See docs/adr/0010-the-kernels-key.md.
 *
 * The first seven words are there in every frame, the others only in some shapes. Those that a
 * shape does not have are 0.
 */
struct weft_key {
	__u64 port;		/* in_port << 32 | shape */
	__u64 eth_dst;		/* eth_dst << 16 | eth_type */
	__u64 eth_src;		/* eth_src << 16 */
	__u64 vlan;		/* vlan_tpid, vlan_tci, vlan_inner_tpid, vlan_inner_tci */
	__u64 ip;		/* ip_proto, tos, ip_ttl, ip_frag, ip6_label */
	__u64 transport;	/* tp_src, tp_dst, tcp_flags, icmp_type, icmp_code */
	__u64 l3[4];		/* ip4_src, ip4_dst | ip6_src, ip6_dst | arp_spa, .. arp_tha */
	__u64 nd[3];		/* nd_target; nd_sll or nd_tll << 16 */
	__u64 tun_id;
	__u64 tun_flags;	/* tun_flags, tun_tos, tun_ttl, tun_metadata_present */
	__u64 tun_metadata;	/* tun_metadata0 */
	__u64 tun_addr[4];	/* tun_src, tun_dst | tun_ipv6_src, tun_ipv6_dst */
};

#define WEFT_KEY_WORDS (sizeof(struct weft_key) / sizeof(__u64))

enum weft_shape {
	/* What `l3` holds, 2 bits. WEFT_L3_LONG: more than its first word. */
	WEFT_L3_NONE = 0,
	WEFT_L3_IP4 = 1,
	WEFT_L3_LONG = 2,
	WEFT_L3_IP6 = 2,
	WEFT_L3_ARP = 3,
	/* `nd` is there, of a neighbour solicitation. */
	WEFT_ND = 4,
	/* Beside WEFT_ND: of an advertisement. */
	WEFT_ND_ADVERT = 8,
	/* The words of the tunnel are there. */
	WEFT_TUNNEL = 16,
	/* Its addresses are those of IPv6. */
	WEFT_TUNNEL6 = 32,
};

/* What becomes of a frame whose headers are read. */
enum weft_parse {
	/* There is a key. */
	WEFT_PARSED = 0,
	/* Headers are cut off or contradict themselves: flow::extract refuses it, too. */
	WEFT_MALFORMED = 1,
	/* Userspace has to read it: the program cannot tell. */
	WEFT_UPCALL = 2,
	/* Not all headers are in the linear part. Never leaves parse(). */
	WEFT_PULL = 3,
};

/* Megaflow 0 is none. */
#define WEFT_NO_FLOW 0

/* A megaflow. It is found by what its key has of a mask. */
struct weft_flow {
	struct weft_key key;	/* 0 outside the mask */
	__u64 generation;	/* of this use of the entry; 0: deleted */
	__u32 next;		/* in the chain of its bucket, or WEFT_NO_FLOW */
	__u16 mask;		/* its number in the map of masks */
	__u16 sections;		/* WEFT_L3_LONG, .._ND, .._TUNNEL: where `key` is not 0 */
};

/* An entry of the exact-match cache. */
struct weft_cached {
	struct weft_key key;
	__u64 generation;	/* of the megaflow when it was found; 0: empty */
	__u32 flow;
	__u32 pad;
};

/* What a megaflow has served, on one CPU. */
struct weft_served {
	__u64 packets;
	__u64 bytes;
};

/* What the lookups of one CPU came to that were not hits in the exact-match cache. */
struct weft_lookups {
	__u64 hits;		/* found by a mask */
	__u64 misses;
	__u64 masks;		/* tried, by hits and misses */
};

#define WEFT_MAX_MASKS 128

/* The masks in the order in which they are tried. */
struct weft_mask_list {
	__u32 count;
	__u32 order[WEFT_MAX_MASKS];
};

/*
 * What the control programs are asked to do; they answer by their return value, 0 or a negative
 * error.
 */
struct weft_control {
	struct weft_key key;	/* flow_put: of the megaflow, 0 outside the mask */
	__u64 generation;	/* flow_put: never used before, not 0 */
	__u32 flow;
	__u32 mask;
};
