/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * The sum of a packet's bytes, of which the outer UDP checksum is made.
 *
 * Almost every packet of a guest owes its own checksum: a device is to make it. The part of the packet that
 * it covers will have the sum that makes it right, so that headers alone tell the whole. Of a packet that
 * owes none (a ping, a fragment, ARP, what the guest forwards for others) all bytes are summed, unless what it
 * has looks like what is owed and comes to the same.
 */
#pragma once

#include "vmlinux.h"

#include <bpf/bpf_core_read.h>

#include "rewrite.h"

/*
 * Helpers make frames that are no super-packets longer only up to what is allocated in one piece:
 * four pages, of which some is not for bytes.
 */
#define LONGEST_PLAIN 15000

/* A sum of fewer than 32,768 numbers of 32 bits. */
static __always_inline __u16 fold(__u64 sum)
{
	sum = (sum & 0xffffffff) + (sum >> 32);
	sum = (sum & 0xffff) + (sum >> 16);
	sum = (sum & 0xffff) + (sum >> 16);
	return sum;
}

/* Numbers of any length in a header: the compiler must not take them for different memory. */
typedef __u16 __attribute__((may_alias)) any16;
typedef __u32 __attribute__((may_alias)) any32;
typedef __u64 __attribute__((may_alias)) any64;

/* What the kernel knows of a packet and does not tell in the context. */
struct partial_csum {
	__u32 start;	/* from where the checksum is owed that a device is to make */
	__u32 field;	/* and where it goes */
};

/* Of a struct sk_buff, from the byte with `ip_summed` on, as far as `mac_header`: 60 bytes and more. */
#define CSUM_SPAN 88

#define field_info(member, what) __builtin_preserve_field_info(((struct sk_buff *)0)->member, what)
#define offset_from_ip_summed(member) \
	(field_info(member, BPF_FIELD_BYTE_OFFSET) - field_info(ip_summed, BPF_FIELD_BYTE_OFFSET))

enum csum_state {
	CSUM_DONE,
	/* A checksum of 16 bits over all that follows. */
	CSUM_PENDING,
	/* It cannot be told: the kernel has its fields in another order. */
	CSUM_UNKNOWN,
};

/*
 * Says whether a checksum is owed. Offsets count from the Ethernet header. All is read at once, for
 * what reading takes is mostly the call.
 */
static __always_inline enum csum_state read_partial_csum(struct __sk_buff *ctx, struct partial_csum *csum)
{
	__u32 start = offset_from_ip_summed(csum_start), offset = offset_from_ip_summed(csum_offset);
	__u32 mac = offset_from_ip_summed(mac_header);
	__u8 part[CSUM_SPAN] __attribute__((aligned(8)));
	__u64 summed;

	if (start > CSUM_SPAN - 2 || offset > CSUM_SPAN - 2 || mac > CSUM_SPAN - 2)
		return CSUM_UNKNOWN;
	if (bpf_probe_read_kernel(part, (mac > offset ? mac : offset) + 2,
				  (void *)ctx + field_info(ip_summed, BPF_FIELD_BYTE_OFFSET)))
		return CSUM_UNKNOWN;
	summed = *(const any64 *)part << field_info(ip_summed, BPF_FIELD_LSHIFT_U64) >>
		 field_info(ip_summed, BPF_FIELD_RSHIFT_U64);
	if (summed != CHECKSUM_PARTIAL)
		return CSUM_DONE;
	csum->start = (__u16)(*(const any16 *)(part + start) - *(const any16 *)(part + mac));
	csum->field = csum->start + *(const any16 *)(part + offset);
	return CSUM_PENDING;
}

/* A packet is read in pieces: whole words, and no more bytes than bpf_csum_diff() takes. */
#define PIECE_LEN 512
#define PIECES ((LONGEST_PLAIN + PIECE_LEN - 1) / PIECE_LEN)

struct weft_sum_buffer {
	__be32 words[PIECE_LEN / sizeof(__be32)];
};

/* Where a piece is: not on the stack, where there is no room for it. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__type(key, __u32);
	__type(value, struct weft_sum_buffer);
	__uint(max_entries, 1);
} weft_sum_buffer __weak SEC(".maps");

/* Adds the bytes from `at` to `end` of the packet, wherever they are, to a sum; false when that cannot be done. */
__weak int sum_bytes(struct __sk_buff *skb, __u32 at, __u32 end, __u64 *sum)
{
	__u32 none = 0, i, behind, words;
	struct weft_sum_buffer *piece = bpf_map_lookup_elem(&weft_sum_buffer, &none);
	__s64 added;

	if (!sum || !piece)
		return false;
#pragma clang loop unroll(disable)
	for (i = 0; i < PIECES; i++) {
		if (at >= end)
			return true;
		/* Of the piece, behind its first byte: there is one, which the verifier has to see. */
		behind = end - at - 1;
		if (behind >= PIECE_LEN)
			behind = PIECE_LEN - 1;
		hide_bounds(behind, PIECE_LEN - 1);
		words = behind / sizeof(__be32);
		/* The last one may not be full. */
		piece->words[words] = 0;
		if (bpf_skb_load_bytes(skb, at, piece, behind + 1))
			return false;
		added = bpf_csum_diff(0, 0, piece->words, (words + 1) * sizeof(__be32), 0);
		if (added < 0)
			return false;
		*sum += added;
		at += behind + 1;
	}
	return at >= end;
}

/*
 * A checksum that is owed is, for the time being, the sum of the pseudo header: a device adds to it all that it
 * covers. So TCP or UDP that has that sum there owes its checksum, and adding it up once it is made comes to the
 * complement. One in 65,536 of those that have been made looks like that by chance: when it is right, it comes to
 * the same; when it is wrong, that of the outer header will be wrong as well, and the far end may drop what would
 * otherwise have reached a guest with its wrong checksum. Adds the sum of the IP packet, which is all of `len`
 * bytes, when it is of this kind, else returns false.
 */
static __always_inline bool sum_by_pseudo_header(const __u8 *ip, const void *end, __u32 len, bool is_ip6,
						 __u64 *sum)
{
	const __be32 *words = (const void *)ip;
	__u32 header = is_ip6 ? IP6_LEN : IP4_LEN, i;
	const __be16 *field;
	__u64 addresses = 0;
	__u16 pseudo;
	__u8 proto;

	if ((const void *)ip + header > end)
		return false;
	if (is_ip6) {
		if (ip[0] >> 4 != 6 || be16(ip + 4) + IP6_LEN != len)
			return false;
		proto = ip[6];
	} else {
		if (ip[0] != 0x45 || be16(ip + 2) != len || be16(ip + 6) & (IP4_OFFSET | IP4_MORE))
			return false;
		proto = ip[9];
	}
	if (proto != PROTO_TCP && proto != PROTO_UDP)
		return false;
	field = (const void *)ip + header + (proto == PROTO_TCP ? TCP_SUM : UDP_SUM);
	if ((const void *)(field + 1) > end)
		return false;
	/* Something may follow the datagram, which its checksum does not cover. */
	if (proto == PROTO_UDP && be16((const void *)ip + header + 4) != len - header)
		return false;
#pragma clang loop unroll(full)
	for (i = is_ip6 ? 2 : 3; i < (is_ip6 ? IP6_LEN : IP4_LEN) / 4; i++)
		addresses += words[i];
	pseudo = fold(addresses + bpf_htons(proto) + bpf_htons(len - header));
	if (*field != pseudo)
		return false;
	addresses += (__u64)words[0] + words[1] + (__u16)~pseudo;
	*sum += is_ip6 ? addresses : addresses + words[2];
	return true;
}

/* Where SCTP has its checksum, which is a CRC and says nothing of sums; no other protocol has one there. */
#define SCTP_SUM 8

/* This says as little as 0, which is for a packet without a sum. */
#define EMPTY_SUM 0xffff

/*
 * The sum of what stands behind the inner Ethernet header, once a checksum that is owed has been made, as
 * a number that is not folded and not 0; layer 3 is at `l3`, and is one that parse() has read if `has_ip`. False when
 * that cannot be told.
 */
__weak int sum_of_packet(struct __sk_buff *skb, __u32 l3, bool has_ip, __u64 *sum)
{
	const void *data = (void *)(long)skb->data, *end = (void *)(long)skb->data_end;
	struct partial_csum csum = {};
	__u64 total = EMPTY_SUM;
	__be16 field;

	if (!sum || !l3 || l3 > MAX_L3_OFFSET)
		return false;
	/* Devices put the outermost tag into the metadata. One that stays in the bytes would not be summed. */
	if (l3 > ETH_LEN && !skb->vlan_present)
		return false;
	hide_bounds(l3, MAX_L3_OFFSET);
	if (has_ip && (sum_by_pseudo_header(data + l3, end, skb->len - l3, false, &total) ||
		      sum_by_pseudo_header(data + l3, end, skb->len - l3, true, &total))) {
		*sum = total;
		return true;
	}
	switch (read_partial_csum(skb, &csum)) {
	case CSUM_DONE:
		if (!sum_bytes(skb, l3, skb->len, &total))
			return false;
		*sum = total;
		return true;
	case CSUM_PENDING:
		break;
	default:
		return false;
	}
	/* What is summed begins and ends at even offsets. */
	if (csum.start < l3 || (csum.start - l3) % 2 || (csum.field - csum.start) % 2 ||
	    csum.field - csum.start == SCTP_SUM)
		return false;
	if (!sum_bytes(skb, l3, csum.start, &total) ||
	    bpf_skb_load_bytes(skb, csum.field, &field, sizeof(field)))
		return false;
	*sum = total + (__u16)~field;
	return true;
}

/*
 * The same of IPv4 without tags that owes its checksum, as most frames do: it takes the fewest steps where it
 * is known where everything is. False says nothing of any other.
 */
static __always_inline bool sum_of_plain(struct __sk_buff *skb, const struct weft_key *key, __u64 *sum)
{
	const void *data = (void *)(long)skb->data, *end = (void *)(long)skb->data_end;

	if (key->vlan || l3_shape(key) != WEFT_L3_IP4)
		return false;
	*sum = EMPTY_SUM;
	return sum_by_pseudo_header(data + ETH_LEN, end, skb->len - ETH_LEN, false, sum);
}
