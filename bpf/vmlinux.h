/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * The kernel types and constants that the programs use, instead of a generated vmlinux.h: types of
 * fixed width, constants of the stable interface (include/uapi/linux/bpf.h, pkt_cls.h), and the
 * context of tc programs, whose accesses the verifier rewrites.
 *
 * Internal structs of the kernel go between the pragmas at the end, with only the members that are
 * used: libbpf relocates accesses to the offsets of the running kernel (CO-RE).
 */
#pragma once

typedef unsigned char __u8;
typedef short __s16;
typedef unsigned short __u16;
typedef int __s32;
typedef unsigned int __u32;
typedef long long __s64;
typedef unsigned long long __u64;
typedef __u16 __be16;
typedef __u32 __be32;
typedef __u64 __be64;
typedef __u32 __wsum;
typedef __u16 __sum16;
typedef _Bool bool;

#define true 1
#define false 0

enum bpf_map_type {
	BPF_MAP_TYPE_HASH = 1,
	BPF_MAP_TYPE_ARRAY = 2,
	BPF_MAP_TYPE_PROG_ARRAY = 3,
	BPF_MAP_TYPE_PERCPU_HASH = 5,
	BPF_MAP_TYPE_PERCPU_ARRAY = 6,
	BPF_MAP_TYPE_ARRAY_OF_MAPS = 12,
	BPF_MAP_TYPE_DEVMAP = 14,
};

enum tc_action {
	TC_ACT_UNSPEC = -1,
	TC_ACT_OK = 0,
	TC_ACT_SHOT = 2,
	TC_ACT_REDIRECT = 7,
};

/* Flags of maps. */
enum {
	BPF_F_MMAPABLE = 1U << 10,
};

/* Flags of BPF helpers. */
enum {
	BPF_F_INGRESS = 1ULL << 0,
	BPF_F_RECOMPUTE_CSUM = 1ULL << 0,
	BPF_F_PSEUDO_HDR = 1ULL << 4,
	BPF_F_MARK_MANGLED_0 = 1ULL << 5,
	BPF_ADJ_ROOM_MAC = 1,
	BPF_F_ADJ_ROOM_FIXED_GSO = 1ULL << 0,
	BPF_F_ADJ_ROOM_ENCAP_L3_IPV4 = 1ULL << 1,
	BPF_F_ADJ_ROOM_ENCAP_L3_IPV6 = 1ULL << 2,
	BPF_F_ADJ_ROOM_ENCAP_L4_GRE = 1ULL << 3,
	BPF_F_ADJ_ROOM_ENCAP_L4_UDP = 1ULL << 4,
	BPF_F_ADJ_ROOM_NO_CSUM_RESET = 1ULL << 5,
	BPF_F_ADJ_ROOM_ENCAP_L2_ETH = 1ULL << 6,
	BPF_F_ADJ_ROOM_DECAP_L3_IPV4 = 1ULL << 7,
	BPF_F_ADJ_ROOM_DECAP_L3_IPV6 = 1ULL << 8,
	BPF_CSUM_LEVEL_DEC = 2,
};

#define BPF_F_ADJ_ROOM_ENCAP_L2(len) (((__u64)(len) & 0xff) << 56)

#define BPF_F_CURRENT_NETNS (-1L)

/* The key of a socket lookup. */
struct bpf_sock_tuple {
	union {
		struct {
			__be32 saddr;
			__be32 daddr;
			__be16 sport;
			__be16 dport;
		} ipv4;
		struct {
			__be32 saddr[4];
			__be32 daddr[4];
			__be16 sport;
			__be16 dport;
		} ipv6;
	};
};

/* The context of tc programs. */
struct __sk_buff {
	__u32 len;
	__u32 pkt_type;
	__u32 mark;
	__u32 queue_mapping;
	__u32 protocol;
	__u32 vlan_present;
	__u32 vlan_tci;
	__u32 vlan_proto;
	__u32 priority;
	__u32 ingress_ifindex;
	__u32 ifindex;
	__u32 tc_index;
	__u32 cb[5];
	__u32 hash;
	__u32 tc_classid;
	__u32 data;
	__u32 data_end;
	__u32 napi_id;
	__u32 family;
	__u32 remote_ip4;
	__u32 local_ip4;
	__u32 remote_ip6[4];
	__u32 local_ip6[4];
	__u32 remote_port;
	__u32 local_port;
	__u32 data_meta;
	__u64 flow_keys;
	__u64 tstamp;
	__u32 wire_len;
	__u32 gso_segs;
	__u64 sk;
	__u32 gso_size;
	__u8 tstamp_type;
	__u32 : 24;
	__u64 hwtstamp;
};


#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)

/* Members of struct sk_buff that __sk_buff does not have. */
struct sk_buff {
	__u8 ip_summed : 2;
	__u8 encapsulation : 1;
	__u16 csum_start;
	__u16 csum_offset;
	__u16 mac_header;
};

#pragma clang attribute pop

/* The types of memory that a dynptr can refer to. The type for packets exists since Linux 6.4. */
enum bpf_dynptr_type {
	BPF_DYNPTR_TYPE_SKB = 3,
};

/* Value of ip_summed: a device will complete the checksum (include/linux/skbuff.h). */
#define CHECKSUM_PARTIAL 3
