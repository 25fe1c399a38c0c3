/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Helpers that build the words of a flow key (struct weft_key) from the bytes of a frame. */
#pragma once

#include "vmlinux.h"

#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#include "intf.h"

/* For access to the same header bytes with different widths, exempt from strict aliasing. */
typedef __u16 __attribute__((may_alias)) any16;
typedef __u32 __attribute__((may_alias)) any32;
typedef __u64 __attribute__((may_alias)) any64;

/*
 * Big-endian loads. Headers are not aligned; the supported architectures allow unaligned loads, and
 * the verifier rejects the programs on others.
 */
static __always_inline __u16 be16(const void *at)
{
	return bpf_ntohs(*(const __u16 *)at);
}

static __always_inline __u32 be32(const void *at)
{
	return bpf_ntohl(*(const __u32 *)at);
}

static __always_inline __u64 be64(const void *at)
{
	return bpf_be64_to_cpu(*(const __u64 *)at);
}

/* The port at which the frame arrived. */
static __always_inline __u32 ingress_port(const struct weft_key *key)
{
	return key->port >> WEFT_IN_PORT_SHIFT;
}

/* The first 6 of 8 bytes, left-aligned in the result. */
static __always_inline __u64 be48(const void *at)
{
	return be64(at) & ~0xffffULL;
}

/* ip_dscp and ip_ecn are adjacent, so together they are the TOS byte, which begins at this bit. */
#define IP_TOS_SHIFT WEFT_IP_ECN_SHIFT

/* The word `ip` of a key. `tos` has ip_dscp and ip_ecn, as in the IP header. */
static __always_inline __u64 ip_word(__u64 proto, __u64 tos, __u64 ttl, __u64 frag, __u64 label)
{
	return proto << WEFT_IP_PROTO_SHIFT | tos << IP_TOS_SHIFT | ttl << WEFT_IP_TTL_SHIFT |
	       frag << WEFT_IP_FRAG_SHIFT | label << WEFT_IP6_LABEL_SHIFT;
}

/*
 * TPID and TCI of a VLAN tag, at the position of the inner tag in the word `vlan` of a key. The DEI
 * bit marks the tag as present.
 */
static __always_inline __u64 tag_word(__u64 tpid, __u64 tci)
{
	return tpid << WEFT_VLAN_INNER_TPID_SHIFT | (tci & 0xffff) | WEFT_TAG_PRESENT;
}

/*
 * The tunnel fields in the key of a frame. For every tunnel, a word after `shape` is not 0: there
 * are outer addresses, or the flag that the tunnel has a key. Userspace sets WEFT_TUNNEL if one of
 * these words is not 0.
 */
struct tunnel {
	__u64 shape;		/* WEFT_TUNNEL, perhaps with WEFT_TUNNEL6 */
	__u64 id;
	__u64 flags;		/* as in struct weft_key */
	__u64 metadata;
	__u64 addr[4];		/* the last three are 0 without WEFT_TUNNEL6 */
};

static __always_inline void key_tunnel(struct weft_key *key, const struct tunnel *tunnel)
{
	key->port |= tunnel->shape;
	key->tun_id = tunnel->id;
	key->tun_flags = tunnel->flags;
	key->tun_metadata = tunnel->metadata;
	key->tun_addr[0] = tunnel->addr[0];
	key->tun_addr[1] = tunnel->addr[1];
	key->tun_addr[2] = tunnel->addr[2];
	key->tun_addr[3] = tunnel->addr[3];
}
