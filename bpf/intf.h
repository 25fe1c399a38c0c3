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
	/* Beside WEFT_TUNNEL: more than the first word of `tun_addr`, of IPv6. */
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
	__u16 sections;		/* WEFT_L3_LONG, .._ND, .._TUNNEL, .._TUNNEL6: where `key` is not 0 */
	__u32 list;		/* of actions */
	__u32 pinned_at;		/* when a packet was last set aside (see actions.h), or 0 */
};

/* An entry of the exact-match cache. */
struct weft_cache_entry {
	struct weft_key key;
	__u64 generation;	/* of the megaflow when it was found; 0: empty */
	__u32 flow;
	__u32 pad;
};

/* What a megaflow has served, on one CPU. */
struct weft_flow_stats {
	__u64 packets;
	__u64 bytes;
};

/* Of so many, side by side: the kernel takes memory for each element of a map by itself, which for every megaflow takes half a second. */
#define WEFT_FLOW_STATS_PER_PAGE 64

struct weft_flow_stats_page {
	struct weft_flow_stats stats[WEFT_FLOW_STATS_PER_PAGE];
};

/* What the lookups of one CPU came to that were not hits in the exact-match cache. */
struct weft_lookup_stats {
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
	__u32 list;		/* flow_put: of actions */
	__u32 pad;
};

/*
 * What is done with the packets of a megaflow. Either a program can do all of it, or the list says
 * to hand them over. See docs/adr/0011-the-kernel-datapath-in-front-of-the-user-datapath.md.
 */
#define WEFT_MAX_ACTIONS 15
/* List 0 hands over. */
#define WEFT_ACTIONS_PUNT 0
#define WEFT_NO_ENDPOINT (~0U)

enum weft_action_kind {
	/* `number`: the port. The only output of a list is its last action, or they are copies. */
	WEFT_ACTION_OUTPUT = 1,
	/* By the uplink, with the tags that there are. */
	WEFT_ACTION_UPLINK = 2,
	/* `number`: the end point; `value`: the key << 32 | the word of logical ports. Last. */
	WEFT_ACTION_ENCAP = 3,
	/* Last. `field`: the reason, by the numbers of flow::DropReason. */
	WEFT_ACTION_DROP = 4,
	/* `value`: the tag, TPID << 16 | TCI. */
	WEFT_ACTION_PUSH_VLAN = 5,
	WEFT_ACTION_POP_VLAN = 6,
	/* `field`: enum weft_set_field; `value`: its new bits, right aligned. */
	WEFT_ACTION_SET = 7,
};

/* The frame has the header; all of the field is rewritten, and the checksums that cover it. */
enum weft_set_field {
	WEFT_SET_ETH_DST = 1,
	WEFT_SET_ETH_SRC = 2,
	WEFT_SET_IP4_SRC = 3,
	WEFT_SET_IP4_DST = 4,
	WEFT_SET_IP4_TTL = 5,
	/* `number`: which bits of DSCP and ECN. */
	WEFT_SET_IP4_TOS = 6,
	/* Halves of addresses. */
	WEFT_SET_IP6_SRC_HIGH = 7,
	WEFT_SET_IP6_SRC_LOW = 8,
	WEFT_SET_IP6_DST_HIGH = 9,
	WEFT_SET_IP6_DST_LOW = 10,
	WEFT_SET_IP6_HOP_LIMIT = 11,
	/* `number`: which bits of DSCP and ECN. */
	WEFT_SET_IP6_TOS = 12,
	/* Of TCP and UDP. */
	WEFT_SET_TP_SRC = 13,
	WEFT_SET_TP_DST = 14,
};

struct weft_action {
	__u8 kind;
	__u8 field;
	__u8 has_ports;		/* WEFT_ACTION_ENCAP: Geneve's option goes along */
	__u8 pad;
	__u32 number;
	__u64 value;
};

struct weft_action_list {
	__u32 count;		/* of actions */
	__u32 endpoint;		/* of the last action, or WEFT_NO_ENDPOINT */
	/*
	 * Frames, or segments of super-packets, of more bytes from the Ethernet header on are
	 * handed over; 0: none are. What the path to `endpoint` carries is asked besides.
	 */
	__u32 max_len;
	__u32 grows;		/* by tags, in bytes, before the last action */
	struct weft_action actions[WEFT_MAX_ACTIONS];
};

/* A VIF, by its number. */
struct weft_port {
	__u32 ifindex;		/* of the end that programs stand at; 0: there is none */
	__u32 flags;		/* WEFT_PORT_.. */
	__u32 max_len;		/* of frames to it without their tags, in bytes: MTU and Ethernet header */
	__u32 pad;
	/*
	 * Address of the other end of a pair << 16, as struct weft_key has it; 0: not known. What
	 * goes to any other address takes the way through the device, slower, which finds out
	 * whether it is meant for the guest's own network stack.
	 */
	__u64 eth_dst;
};

/* The device is one end of a pair whose other end is in another namespace. */
#define WEFT_PORT_PEER 1
/* Somebody looks on: what comes from it or would go to it is handed over while there is a daemon. */
#define WEFT_PORT_WATCHED 2
/*
 * For a daemon that finds the port of one that was killed: the device was made to receive all frames,
 * or is a TAP that was made for a virtual machine.
 */
#define WEFT_PORT_PROMISCUOUS 4
#define WEFT_PORT_VM_TAP 8

/* By the lowest 16 bits of its index, or a little behind them: which port a device is. */
struct weft_device {
	__u32 ifindex;		/* 0: none */
	__u32 port;
};

/*
 * Of a port, on one CPU; of tagged frames on the uplink likewise. What is handed over is counted
 * where it goes.
 */
struct weft_port_stats {
	__u64 rx_packets;
	__u64 rx_bytes;
	__u64 tx_packets;
	__u64 tx_bytes;
};

/* Who may hand over how many misses; see weft_config. */
struct weft_token_bucket {
	__u64 at_ns;		/* of the last */
	__u64 tokens;
};

/* The port that a packet came in by (not always one of a VIF) << 8 | the reason. */
struct weft_drop_key {
	__u64 port_reason;
};

/* flow::TunnelType. */
enum weft_tunnel {
	WEFT_VXLAN = 0,
	WEFT_GENEVE = 1,
	WEFT_GRE = 2,
};

#define WEFT_HEADER_MAX 72

/* What end points of one kind share: the outer header with what differs being 0, and the rest. */
struct weft_class {
	__u8 header[WEFT_HEADER_MAX];
	__u8 len;		/* of it */
	__u8 tunnel;		/* enum weft_tunnel */
	__u8 flags;		/* WEFT_CLASS_.. */
	__u8 ttl;		/* unless inherited */
	__u8 dscp;		/* unless inherited; << 2 */
	__u8 pad;
	/*
	 * Sum of the IPv4 header's words, as they are on the wire, folded to 16 bits. The header is as it stands
	 * here: total length, type of service, TTL, checksum and destination are 0.
	 */
	__u16 ip_sum;
	__u32 in_port;		/* the port by which its packets come in */
	__u32 carrier;		/* what they come by: see endpoint_lookup.h */
	__u32 local[4];		/* where they come to, as on the wire; IPv4: the first */
};

#define WEFT_CLASS_IP6 1
/* Outer UDP checksum: by header arithmetic; super-packets go without. */
#define WEFT_CLASS_CHECKSUM 2
#define WEFT_CLASS_TTL_INHERIT 4
#define WEFT_CLASS_DSCP_INHERIT 8
/* GRE: a key is sent and demanded. */
#define WEFT_CLASS_KEY 16
/* SYN segments are handed over: their MSS is lowered there. */
#define WEFT_CLASS_CLAMP_MSS 32

/* A remote end point, by its number. */
struct weft_endpoint {
	__u32 remote[4];	/* as on the wire; IPv4: the first */
	__u8 eth_dst[6];
	__u8 eth_src[6];
	__u16 class;
	__u16 max_len;		/* of inner frames without Geneve's option, Ethernet header included */
	__u32 flags;		/* WEFT_ENDPOINT_.. */
	__u32 next;		/* as in weft_sources */
	__u64 tx_packets;	/* these are added to atomically */
	__u64 tx_bytes;
	__u64 rx_packets;
	__u64 rx_bytes;
};

/* endpoint_put: what is written but for the counters, which go on. */
struct weft_endpoint_update {
	struct weft_endpoint endpoint;
	__u32 number;
	__u32 pad;
};

/* There is one. */
#define WEFT_ENDPOINT_PRESENT 1
/* Its Ethernet addresses are known; otherwise packets are handed over. */
#define WEFT_ENDPOINT_RESOLVED 2
/* Its tunnel has options. */
#define WEFT_ENDPOINT_GENEVE 4
/* What its class says, where it is asked first: flags, and length of the header, 8 bits each. */
#define WEFT_ENDPOINT_CLASS_SHIFT 8
#define WEFT_ENDPOINT_LEN_SHIFT 16

/* sources_put, sources_delete: of end points with numbers in a row. */
struct weft_endpoint_range {
	__u32 first;
	__u32 count;
};

/* An address of ours, as on the wire, to which GRE is for userspace, whoever sends it. */
struct weft_gre_local {
	__u32 local[4];		/* IPv4: the first */
	__u32 is_ip6;
};

/* A logical link of the uplink, by its tags: flow::TagLink. */
struct weft_tag_link_key {
	__u16 tpid;
	__u16 vlan;
	__u16 inner_tpid;	/* 0: there is only one tag */
	__u16 inner_vlan;
};

struct weft_tag_link {
	__u32 in_port;
	__u32 pad;
	__u64 tun_id;		/* as in struct weft_key */
	__u64 tun_flags;
};

/* What may change at any time. */
struct weft_config {
	__u32 uplink_ifindex;
	__u32 uplink_port;
	__u32 watch_drops;		/* what would be dropped is handed over */
	__u32 has_links;		/* userspace wants to know of tagged frames of other links */
	__u64 miss_ns;			/* one more of a port's misses in so many nanoseconds; 0: no limit */
	__u64 miss_burst;		/* and so many at once */
	__u16 entropy_base;
	__u16 entropy_mask;		/* ports of the range - 1 */
	__u32 uplink_max_len;		/* of tagged frames by the uplink, tags included; 0: no limit */
	__u16 vxlan_port;		/* a device of the kernel's has it, for the sake of its GRO */
	__u16 socket_port;		/* where the user datapath's sockets are instead; 0: at the tunnel's own port */
	__u32 watch_frames;		/* 0: no port has WEFT_PORT_WATCHED, and senders' are not asked */
};

/*
 * In front of a frame that is handed over: an Ethernet header from nobody, with the port in the
 * first four bytes of the destination, in network order. A tag that was in the skb's metadata
 * stands behind the addresses of this header.
 *
 * Frames that cannot be given that header have two more tags instead, in front of their own: one of
 * 0x88a8 with the upper half of the port and one of 0x8100 with the lower half, both as TCI.
 */
#define WEFT_PUNT_ETHERTYPE 0x88b5
