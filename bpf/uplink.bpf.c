// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/* From the underlay: at the tc ingress hook of the uplink. */
#include "decap.h"

#define OTHER_LINK_MARK 0x77656674

/*
 * A packet that a program does not deliver goes on untouched: to the user datapath's UDP socket, or
 * handed over where that one would have to listen on a packet socket, which sees what programs serve.
 */
static __noinline int leave(struct __sk_buff *skb, const struct arrival *arrival)
{
	if (arrival->proto == PROTO_UDP)
		return TC_ACT_OK;
	return hand_over(skb, weft_config.uplink_port);
}

/*
 * A tagged frame of no link is the host's. Userspace gets one, too, to count it and show it. There is
 * one of them, so the other comes by here once more, marked.
 */
static __noinline int other_link(struct __sk_buff *skb)
{
	if (!weft_config.has_links)
		return TC_ACT_OK;
	if (skb->mark == OTHER_LINK_MARK) {
		skb->mark = 0;
		return TC_ACT_OK;
	}
	if (!has_token(weft_config.uplink_port))
		return TC_ACT_OK;
	skb->mark = OTHER_LINK_MARK;
	bpf_clone_redirect(skb, skb->ifindex, BPF_F_INGRESS);
	skb->mark = 0;
	return hand_over(skb, weft_config.uplink_port);
}

/* Takes off what brought the frame. */
static __always_inline int decap(struct __sk_buff *skb, struct weft_key *key,
				 const struct arrival *arrival, bool *has_protocol)
{
	if (arrival->endpoint != WEFT_NO_ENDPOINT)
		return take_off(skb, key, arrival->place.offset, has_protocol);
	*has_protocol = true;
	if (bpf_skb_vlan_pop(skb) || (arrival->tags == 2 && bpf_skb_vlan_pop(skb)))
		return TAKE_OFF_LOST;
	return TAKEN_OFF;
}

/* A packet that will be delivered, or that ends here. */
static __always_inline void finish(__u32 flow, __u32 bytes, const struct arrival *arrival)
{
	__u32 number = arrival->endpoint;
	struct weft_endpoint *endpoint;

	serve(flow, bytes);
	if (number == WEFT_NO_ENDPOINT) {
		count_rx(uplink_count(), bytes + arrival->tags * TAG_LEN);
		return;
	}
	endpoint = bpf_map_lookup_elem(&weft_endpoints, &number);
	if (endpoint) {
		__sync_fetch_and_add(&endpoint->rx_packets, 1);
		__sync_fetch_and_add(&endpoint->rx_bytes, bytes);
	}
}

/*
 * A super-packet out of a tunnel can go to a port. The kernel does not forget that there were outer
 * headers: a device that cannot carry the segments of such a packet would cut it as if they were
 * still there, and for UDP it always would. So it goes to pairs, and of UDP to the guest itself.
 */
static __always_inline bool can_deliver_whole(const struct weft_key *key,
					      const struct weft_port *out, __u32 count)
{
	if (ip_proto(key) == PROTO_UDP)
		return count == 1 && is_for_guest(key, out);
	return out->flags & WEFT_PORT_PEER;
}

/* `ecn`: the frame is to get the ECN field that the key has. */
static __always_inline int execute(struct __sk_buff *skb, struct weft_key *key,
				   const struct weft_list *list, __u32 flow,
				   const struct arrival *arrival, int ecn)
{
	__u32 count = list->count, tags = key->vlan ? tag_count(key) * TAG_LEN : 0, l3, wire_len;
	__u32 bytes = skb->len - arrival->place.offset - arrival->place.skip, untagged;
	const struct weft_action *last;
	struct weft_port *out = 0;
	bool has_protocol;

	if (!count) {
		finish(flow, bytes, arrival);
		return TC_ACT_SHOT;
	}
	last = last_of(list);
	if (!last)
		return leave(skb, arrival);
	/* Or outer headers cannot be taken off: a whole header of their kind has to stay. */
	if (arrival->endpoint != WEFT_NO_ENDPOINT &&
	    bytes < ETH_LEN + (key->port & WEFT_TUNNEL6 ? IP6_LEN : IP4_LEN))
		return leave(skb, arrival);
	l3 = arrival->place.offset + arrival->place.skip + ETH_LEN + tags;
	untagged = skb->gso_size ? 0 : bytes - tags;
	wire_len = bytes;
	if (skb->gso_size) {
		if (arrival->endpoint != WEFT_NO_ENDPOINT && !is_one_packet(skb, key, l3))
			return leave(skb, arrival);
		if (list->max_len) {
			wire_len = segment_len(skb, key, l3);
			if (!wire_len)
				return leave(skb, arrival);
			wire_len -= arrival->place.offset + arrival->place.skip;
		}
	}
	if (list->max_len && wire_len > list->max_len)
		return leave(skb, arrival);
	if (count > 1 && !can_change(skb, key, list, l3, untagged))
		return leave(skb, arrival);
	if (last->kind == WEFT_ACTION_OUTPUT) {
		out = port_at(last->number);
		if (!can_output(out, untagged) ||
		    (skb->gso_size && arrival->endpoint != WEFT_NO_ENDPOINT &&
		     !can_deliver_whole(key, out, count)))
			return leave(skb, arrival);
	} else if (last->kind != WEFT_ACTION_DROP || weft_config.watch_drops) {
		return leave(skb, arrival);
	}
	if (count > 1 || out) {
		int taken = decap(skb, key, arrival, &has_protocol);

		if (taken == TAKE_OFF_REFUSED)
			return leave(skb, arrival);
		finish(flow, bytes, arrival);
		if (taken != TAKEN_OFF ||
		    (ecn && set_field(skb, key, WEFT_SET_IP4_TOS, key->ip >> 48, 3)) ||
		    (count > 1 && change_all(skb, key, list)))
			return count_drop(key->port >> 32, DROP_HEADROOM);
	} else {
		finish(flow, bytes, arrival);
	}
	if (out) {
		count_tx(count_of(last->number), frame_bytes(skb));
		return deliver(skb, key, out, has_protocol);
	}
	return count_drop(key->port >> 32, last->field);
}

/* Ethernet, IPv6, UDP, Geneve and OVN's option. */
#define OUTER_LEN 78

/* Some senders leave all but the Ethernet header of a long packet to pages. */
static __always_inline void pull_outer(struct __sk_buff *skb)
{
	if ((void *)(long)skb->data + OUTER_LEN > (void *)(long)skb->data_end)
		bpf_skb_pull_data(skb, skb->len < OUTER_LEN ? skb->len : OUTER_LEN);
}

static __always_inline int arrive(struct __sk_buff *skb, struct weft_key *key,
				  struct arrival *arrival)
{
	switch (skb->protocol) {
	case bpf_htons(ETHERTYPE_IP4):
		pull_outer(skb);
		return read_tunnel(skb, key, arrival, false);
	case bpf_htons(ETHERTYPE_IP6):
		pull_outer(skb);
		return read_tunnel(skb, key, arrival, true);
	default:
		return ARRIVED_NOT_OURS;
	}
}

SEC("tc")
int weft_uplink(struct __sk_buff *skb)
{
	struct arrival arrival = {};
	struct weft_key key = {};
	struct weft_list *list;
	struct weft_flow *flow;
	__u32 number, at;
	int arrived, ecn;

	if (skb->vlan_present || is_tpid(bpf_ntohs(skb->protocol)))
		arrived = read_link(skb, &key, &arrival);
	else
		arrived = arrive(skb, &key, &arrival);
	if (arrived == ARRIVED_NOT_OURS)
		return TC_ACT_OK;
	if (arrived == ARRIVED_OTHER_LINK)
		return other_link(skb);
	if (arrived == ARRIVED_ODD || parse_inner(skb, &key, &arrival.place) != WEFT_PARSED)
		return leave(skb, &arrival);
	ecn = join_ecn(&key, arrival.tos);
	if (ecn < 0)
		return leave(skb, &arrival);
	number = lookup(&key);
	flow = flow_at(number);
	if (number == WEFT_NO_FLOW || !flow)
		return leave(skb, &arrival);
	at = flow->list;
	list = bpf_map_lookup_elem(&weft_lists, &at);
	if (at == WEFT_LIST_HAND_OVER || !list)
		return leave(skb, &arrival);
	return execute(skb, &key, list, number, &arrival, ecn);
}

char _license[] SEC("license") __weak = "Dual BSD/GPL";
