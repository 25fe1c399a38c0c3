/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * The interface between the BPF programs and the daemon: map layouts and constants.
 *
 * Rust does not repeat any of it. crates/datapath-bpf/build.rs generates the layouts and every
 * constant of the named enums below from the compiler's type information (BTF). A constant that
 * Rust needs must therefore be an enumerator here, not a #define. The other way round, that script
 * generates shared_constants.h from Rust sources.
 */
#pragma once

#include "shared_constants.h"

/*
 * The key of a frame: words of flow::FlowKey, in host byte order. The table of fields
 * (crates/flow/src/field/table.rs) gives the member that holds each field. Fields that never occur
 * in the same frame share words; the *shape* tells which of them are present. See
 * docs/adr/0010-the-kernels-key.md.
 *
 * Every lookup compares the first seven words. It compares the others only if the shape has them.
 * Words that a shape lacks are 0.
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
	/* The contents of `l3`, in 2 bits. WEFT_L3_LONG: more than its first word is used. */
	WEFT_L3_NONE = 0,
	WEFT_L3_IP4 = 1,
	WEFT_L3_LONG = 2,
	WEFT_L3_IP6 = 2,
	WEFT_L3_ARP = 3,
	/* `nd` is in use: the frame is a neighbour solicitation or advertisement. */
	WEFT_ND = 4,
	/* With WEFT_ND: it is an advertisement. */
	WEFT_ND_ADVERT = 8,
	/* The tunnel words are in use. */
	WEFT_TUNNEL = 16,
	/* With WEFT_TUNNEL: the outer header is IPv6, so all words of `tun_addr` are in use. */
	WEFT_TUNNEL6 = 32,
};

/* The result of parsing a frame's headers. */
enum weft_parse {
	/* The key is complete. */
	WEFT_PARSED = 0,
	/* Headers are truncated or inconsistent. flow::extract rejects the frame, too. */
	WEFT_MALFORMED = 1,
	/* The program cannot decide: userspace has to parse the frame. */
	WEFT_UPCALL = 2,
	/* Some headers are outside the linear part of the skb. parse() handles this itself. */
	WEFT_PULL = 3,
};

enum weft_limits {
	/* The most masks that a lookup tries. */
	WEFT_MAX_MASKS = 128,
	/* The most actions in one list. */
	WEFT_MAX_ACTIONS = 15,
	/* Bytes of the longest outer header without Geneve options. */
	WEFT_HEADER_MAX = 72,
	/*
	 * Counters of this many megaflows share one map element. The kernel allocates each element
	 * of a per-CPU array separately; with one element per megaflow, this would take half a
	 * second.
	 */
	WEFT_FLOW_STATS_PER_PAGE = 64,
	/* The same for entries of the exact-match cache. */
	WEFT_CACHED_PER_PAGE = 64,
	/* Elements of weft_devices, a hash table by interface index with linear probing. */
	WEFT_DEVICES = 65536,
	/* Consecutive elements in which an interface may be found. */
	WEFT_DEVICE_PROBES = 4,
	/*
	 * The most end points that a program tries in a hash bucket of weft_sources. The user
	 * datapath decapsulates the packets of further end points.
	 */
	WEFT_MAX_SOURCES = 16,
	/*
	 * Longest frame without GSO that is encapsulated, in bytes. Helpers do not extend a packet
	 * beyond SKB_MAX_ALLOC: four pages, less the struct skb_shared_info behind the data.
	 */
	WEFT_MAX_PLAIN_LEN = 15000,
	/*
	 * The most megaflows in the chain of a hash bucket; flow_put fails if there are so many
	 * already.
	 */
	WEFT_MAX_CHAIN = 8,
};

/* Reserved numbers, which are not the index of any entry. */
enum weft_reserved {
	WEFT_NO_FLOW = 0,
	/* The action list whose packets are punted to userspace. It has no entry in the map. */
	WEFT_ACTIONS_PUNT = 0,
};

enum weft_no_endpoint {
	WEFT_NO_ENDPOINT = ~0U,
};

/* A megaflow. A packet matches when its key, under the mask, equals `key`. */
struct weft_flow {
	struct weft_key key;	/* 0 outside the mask */
	/*
	 * Unique for each use of the entry, and greater than all earlier ones; 0: deleted. The
	 * daemon gives a megaflow a new generation when it confirms it under a new program (the
	 * rules that decide about packets).
	 */
	__u64 generation;
	__u32 next;		/* next megaflow in the hash bucket, or WEFT_NO_FLOW */
	__u16 mask;		/* index in the map of masks */
	/* which optional parts of `key` are not 0: WEFT_L3_LONG, WEFT_ND, WEFT_TUNNEL* */
	__u16 sections;
	__u32 list;		/* index of its action list */
	/*
	 * While packets are pinned to the slow path (the user datapath): the time of the pin, and
	 * how many more packets to punt; layout in actions.h. Otherwise 0.
	 */
	__u32 pin;
};

/* An entry of the exact-match cache. */
struct weft_cache_entry {
	struct weft_key key;
	__u64 generation;	/* that of the megaflow when it was cached; 0: empty */
	__u32 flow;
	__u32 pad;
};

struct weft_cache_page {
	struct weft_cache_entry entries[WEFT_CACHED_PER_PAGE];
};

/* Packets that a megaflow has matched, on one CPU. */
struct weft_flow_stats {
	__u64 packets;
	__u64 bytes;
};

struct weft_flow_stats_page {
	struct weft_flow_stats stats[WEFT_FLOW_STATS_PER_PAGE];
};

/* Lookups on one CPU that missed the exact-match cache. */
struct weft_lookup_stats {
	__u64 hits;		/* found by a later search */
	__u64 misses;
	__u64 masks;		/* masks tried, by hits and misses */
};

/* The masks in the order in which a lookup tries them. */
struct weft_mask_list {
	__u32 count;
	__u32 order[WEFT_MAX_MASKS];
};

/*
 * The argument of the control programs for megaflows and masks, which the daemon runs to change
 * maps. They return 0 or a negative errno.
 */
struct weft_control {
	struct weft_key key;	/* flow_put: key of the megaflow, 0 outside the mask */
	/* flow_put, flow_renew: a number greater than all that were used before */
	__u64 generation;
	__u32 flow;
	__u32 mask;
	__u32 list;		/* flow_put, flow_renew: index of the action list */
	__u32 pad;
};

/*
 * One action. A program executes either the whole list of a megaflow or none of it; in the latter
 * case it punts the packet. See docs/adr/0011-the-kernel-datapath-in-front-of-the-user-datapath.md.
 */
enum weft_action_kind {
	/*
	 * `number`: the port. The last action of a list sends the packet itself, earlier ones send
	 * copies.
	 */
	WEFT_ACTION_OUTPUT = 1,
	/* Send by the uplink with the tags that the frame has. */
	WEFT_ACTION_UPLINK = 2,
	/*
	 * Only as the last action. `number`: the end point; `value`: the tunnel key from bit
	 * WEFT_ENCAP_KEY_SHIFT on, and below it the data of Geneve's logical-port option.
	 */
	WEFT_ACTION_ENCAP = 3,
	/* Only as the last action. `field`: enum drop_reason. */
	WEFT_ACTION_DROP = 4,
	/* `value`: the tag, TPID << WEFT_PUSH_VLAN_TPID_SHIFT | TCI. */
	WEFT_ACTION_PUSH_VLAN = 5,
	WEFT_ACTION_POP_VLAN = 6,
	/* `field`: enum weft_set_field; `value`: its new bits, right aligned. */
	WEFT_ACTION_SET = 7,
};

/* Bit positions in the `value` of an action. */
enum weft_action_bits {
	WEFT_ENCAP_KEY_SHIFT = 32,
	WEFT_PUSH_VLAN_TPID_SHIFT = 16,
};

/*
 * Fields that WEFT_ACTION_SET rewrites. It also updates the checksums that cover them. A list
 * rewrites a field only in frames that have its header.
 */
enum weft_set_field {
	WEFT_SET_ETH_DST = 1,
	WEFT_SET_ETH_SRC = 2,
	WEFT_SET_IP4_SRC = 3,
	WEFT_SET_IP4_DST = 4,
	WEFT_SET_IP4_TTL = 5,
	/* `number`: mask of the DSCP and ECN bits to write. */
	WEFT_SET_IP4_TOS = 6,
	/* Upper and lower 64 bits of an address. */
	WEFT_SET_IP6_SRC_HIGH = 7,
	WEFT_SET_IP6_SRC_LOW = 8,
	WEFT_SET_IP6_DST_HIGH = 9,
	WEFT_SET_IP6_DST_LOW = 10,
	WEFT_SET_IP6_HOP_LIMIT = 11,
	/* `number`: mask of the DSCP and ECN bits to write. */
	WEFT_SET_IP6_TOS = 12,
	/* Ports of TCP and UDP. */
	WEFT_SET_TP_SRC = 13,
	WEFT_SET_TP_DST = 14,
	/* Fields of ARP. No checksum covers them. */
	WEFT_SET_ARP_OP = 15,
	WEFT_SET_ARP_SHA = 16,
	WEFT_SET_ARP_SPA = 17,
	WEFT_SET_ARP_THA = 18,
	WEFT_SET_ARP_TPA = 19,
};

struct weft_action {
	__u8 kind;
	__u8 field;
	__u8 has_ports;		/* WEFT_ACTION_ENCAP: send Geneve's logical-port option */
	__u8 pad;
	__u32 number;
	__u64 value;
};

struct weft_action_list {
	__u32 count;		/* of actions */
	__u32 endpoint;		/* that of the last action, or WEFT_NO_ENDPOINT */
	/*
	 * Bytes from the Ethernet header on. Longer frames, and super-packets with longer
	 * segments, are punted; 0: no limit. The path MTU of `endpoint` is checked separately.
	 */
	__u32 max_len;
	__u32 grows;		/* bytes of tags that are added before the last action */
	struct weft_action actions[WEFT_MAX_ACTIONS];
};

/* The interface of a guest (VIF), by port number. */
struct weft_port {
	__u32 ifindex;		/* the device to send by; 0: there is none */
	__u32 flags;		/* enum weft_port_flags */
	__u32 max_len;		/* bytes of an untagged frame: MTU plus Ethernet header */
	__u32 pad;
	/*
	 * MAC address of the guest's end of a veth pair << 16, as in struct weft_key; 0: unknown.
	 * Only frames to this address may skip the host's end (bpf_redirect_peer). For other
	 * addresses the guest's own network stack has to decide whether it accepts the frame.
	 */
	__u64 eth_dst;
};

enum weft_port_flags {
	/* The device is one end of a veth pair whose other end is in another namespace. */
	WEFT_PORT_PEER = 1,
	/* Frames are captured: those from and to the port are punted while a daemon runs. */
	WEFT_PORT_WATCHED = 2,
	/*
	 * Only daemons use the last two flags. They tell the next daemon how to clean up if this
	 * one is killed.
	 *
	 * The device existed before weft, and the daemon has changed its settings.
	 */
	WEFT_PORT_INTERFACE = 4,
	/* The daemon has created the device as the TAP of a virtual machine. */
	WEFT_PORT_VM_TAP = 8,
};

/* The port of an interface. Hashed by the low 16 bits of `ifindex`. */
struct weft_device {
	__u32 ifindex;		/* 0: free */
	__u32 port;
};

/*
 * Counters of a port, or of tagged frames on the uplink. The user datapath counts punted packets.
 * Each direction has its own cache line, because different CPUs often count the two directions.
 */
struct weft_port_stats {
	__u64 rx_packets;
	__u64 rx_bytes;
	__u64 rx_pad[6];
	__u64 tx_packets;
	__u64 tx_bytes;
	__u64 tx_pad[6];
};

/* Token bucket that limits a port's misses, or short segments; see struct weft_config. */
struct weft_token_bucket {
	__u64 at_ns;		/* when the last token was added */
	__u64 tokens;
};

/* The state of a port's packets in the queue of punted packets, in the units of punt_queue.h. */
struct weft_punt_queue {
	__u64 last_ns;		/* when the last packet was punted */
	__u64 marked_ns;	/* when an earlier packet was punted */
	__u32 punted;		/* units of all packets ever punted; wraps around */
	__u32 marked;		/* `punted` at `marked_ns` */
	__u32 read;		/* the daemon has read at least this much of `punted` */
	__u32 pad;
};

/* Key of a drop counter: ingress port and drop reason. */
struct weft_drop_key {
	__u64 port_reason;	/* port << WEFT_DROP_PORT_SHIFT | enum drop_reason */
};

enum weft_drop_key_bits {
	WEFT_DROP_PORT_SHIFT = 8,
	WEFT_DROP_REASON_MASK = 0xff,
};

/* The properties that many end points share: tunnel type, options and local address. */
struct weft_class {
	__u8 header[WEFT_HEADER_MAX];	/* outer header; fields that differ per packet are 0 */
	__u8 len;		/* of `header`, in bytes */
	__u8 tunnel;		/* enum weft_tunnel, with WEFT_OVER_GRE unless over UDP */
	__u8 flags;		/* enum weft_class_flags */
	__u8 ttl;		/* unless it is inherited */
	__u8 dscp;		/* DSCP << 2, unless it is inherited */
	__u8 pad;
	/*
	 * Sum of the 16-bit words of the IPv4 header as they are on the wire, folded to 16 bits.
	 * Total length, TOS, TTL, checksum and destination count as 0.
	 */
	__u16 ip_sum;
	__u32 in_port;		/* ingress port of frames from these end points */
	/* address family, IP protocol and port: see endpoint_lookup.h */
	__u32 carrier;
	__u32 local[4];		/* local address in network order; IPv4: the first word */
};

enum weft_class_flags {
	WEFT_CLASS_IP6 = 1,
	/*
	 * Send an outer UDP checksum. Super-packets are sent without it over IPv4, and punted over
	 * IPv6.
	 */
	WEFT_CLASS_CHECKSUM = 2,
	WEFT_CLASS_TTL_INHERIT = 4,
	WEFT_CLASS_DSCP_INHERIT = 8,
	/* GRE: send a key, and require one in received packets. */
	WEFT_CLASS_KEY = 16,
	/* TCP SYN segments are punted: the user datapath clamps their MSS. */
	WEFT_CLASS_CLAMP_MSS = 32,
};

/*
 * A flag in the `tunnel` of struct weft_class: the tunnel runs over IP protocol 47 (GRE), not over
 * UDP. It is greater than all tunnel types, so that one comparison tests it. Testing it as a bit
 * would take one instruction more, and so would the value 128, for which clang emits a sign test.
 */
enum weft_class_tunnel {
	WEFT_OVER_GRE = 64,
};

/* Bit positions in the `carrier` of struct weft_class: family << 24 | IP protocol << 16 | port. */
enum weft_carrier {
	WEFT_CARRIER_PROTO_SHIFT = 16,
	WEFT_CARRIER_IP6_SHIFT = 24,
};

/* A remote end point, by number. */
struct weft_endpoint {
	__u32 remote[4];	/* remote address in network order; IPv4: the first word */
	__u8 eth_dst[6];
	__u8 eth_src[6];
	__u16 class;
	/* bytes of the longest inner frame, less the length of a Geneve option if one is sent */
	__u16 max_len;
	__u32 flags;		/* enum weft_endpoint_flags */
	/* number + 1 of the next end point in the hash bucket; 0: none */
	__u32 next;
	__u64 tx_packets;	/* counters, updated with atomic adds */
	__u64 tx_bytes;
	__u64 rx_packets;
	__u64 rx_bytes;
};

/* Argument of endpoint_put, which leaves the counters as they are. */
struct weft_endpoint_update {
	struct weft_endpoint endpoint;
	__u32 number;
	__u32 pad;
};

enum weft_endpoint_flags {
	/* The entry is in use. */
	WEFT_ENDPOINT_PRESENT = 1,
	/* `eth_dst` and `eth_src` are known. Otherwise packets to the end point are punted. */
	WEFT_ENDPOINT_RESOLVED = 2,
	/* The tunnel type has options (Geneve). */
	WEFT_ENDPOINT_OPTION = 4,
	/* Copies of the class's flags and header length, 8 bits each, which save a map lookup. */
	WEFT_ENDPOINT_CLASS_SHIFT = 8,
	WEFT_ENDPOINT_LEN_SHIFT = 16,
};

/* Argument of sources_put and sources_delete: end points with consecutive numbers. */
struct weft_endpoint_range {
	__u32 first;
	__u32 count;
};

/* The local end of tunnels: local address and carrier, as in struct weft_class. */
struct weft_local {
	__u32 local[4];		/* in network order; IPv4: the first word */
	__u32 carrier;
};

/* The fate of packets to a struct weft_local whose sender is not in weft_sources. */
enum weft_local_state {
	/* Userspace may know the sender: GRE is punted, UDP goes to the daemon's socket. */
	WEFT_LOCAL_OPEN = 1,
	/* weft_sources has all senders that userspace knows, so the packets are dropped. */
	WEFT_LOCAL_COMPLETE = 2,
};

/* The VLAN tags of a logical link on the uplink: flow::TagLink. */
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

/* Settings that the daemon may change while programs run. */
struct weft_config {
	__u32 uplink_ifindex;
	__u32 uplink_port;
	__u32 watch_drops;	/* punt packets instead of dropping them: drops are captured */
	/*
	 * Punt copies of tagged frames of unknown links, so that userspace counts them. The rate
	 * limit of misses applies.
	 */
	__u32 has_links;
	/* token period of a port's misses, in nanoseconds; 0: no limit */
	__u64 miss_ns;
	__u64 miss_burst;	/* size of the token bucket */
	__u16 entropy_base;	/* first outer source port */
	__u16 entropy_mask;	/* number of outer source ports - 1; a power of two - 1 */
	/* the most bytes of a tagged frame sent by the uplink, with its tags; 0: no limit */
	__u32 uplink_max_len;
	/* VXLAN's port, if a kernel device owns it so that GRO coalesces VXLAN packets; or 0 */
	__u16 vxlan_port;
	__u16 socket_port;	/* the port of the user datapath's VXLAN socket then; or 0 */
	__u32 watch_frames;	/* some port has WEFT_PORT_WATCHED; 0: ingress need not check */
	/*
	 * Lookups ignore megaflows of a smaller generation: the daemon made them under an earlier
	 * program and has not confirmed them since.
	 */
	__u64 least_generation;
	/* units that each port may have in the queue, see punt_queue.h; 0: no limit */
	__u32 punt_limit;
	__u32 punt_queue_len;	/* units that all ports may have there */
	/* token period of a port's short segments, in nanoseconds; 0: no limit */
	__u32 segment_ns;
	__u32 segment_burst;	/* size of the token bucket */
	__u32 pad;
};

/*
 * The header in front of a punted frame. It is an Ethernet header of type WEFT_PUNT_ETHERTYPE. Its
 * address bytes are the ingress port (at WEFT_PUNT_PORT_AT, in network order) and the time when
 * the frame was punted (at WEFT_PUNT_TIME_AT: bpf_ktime_get_ns, in the byte order of the host, or
 * 0). If the skb's metadata held a VLAN tag, the kernel inserts it after the addresses of this
 * header.
 *
 * A frame that cannot be extended by that header gets two more tags instead: 0x88a8 with the upper
 * 16 bits of the port as its TCI, and 0x8100 with the lower 16 bits.
 */
