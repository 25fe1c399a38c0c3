// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/* From a guest: at the tc ingress hook of the device that is a port's end on the host. */
#include "execute.h"

/* The end point of a list that ends in encapsulation, if a frame of `wire_len` can go there. */
static __always_inline struct weft_endpoint *can_encap(struct __sk_buff *skb,
						       const struct weft_key *key,
						       const struct weft_list *list,
						       const struct weft_action *last,
						       __u32 wire_len, struct weft_class **found)
{
	const __u32 ready = WEFT_ENDPOINT_PRESENT | WEFT_ENDPOINT_RESOLVED;
	struct weft_endpoint *endpoint;
	__u32 number = list->endpoint, limit;
	struct weft_class *class;

	endpoint = bpf_map_lookup_elem(&weft_endpoints, &number);
	if (!endpoint || (endpoint->flags & ready) != ready)
		return 0;
	number = endpoint->class;
	class = bpf_map_lookup_elem(&weft_classes, &number);
	if (!class)
		return 0;
	limit = endpoint->max_len;
	if (class->tunnel == WEFT_GENEVE && last->has_ports)
		limit -= OPTION_LEN;
	if (!wire_len || (__s32)(wire_len + list->grows) > (__s32)limit)
		return 0;
	if (class->flags & WEFT_CLASS_CLAMP_MSS && ip_proto(key) == PROTO_TCP &&
	    key->transport & 0x02 << 16)
		return 0;
	/* Two tags can be put into the bytes of the frame. */
	if ((key->vlan || list->grows) &&
	    (has_odd_tags(key) || tag_count(key) * TAG_LEN + list->grows > 2 * TAG_LEN))
		return 0;
	if (skb->gso_size) {
		const __u16 refused = WEFT_CLASS_CHECKSUM | WEFT_CLASS_IP6;

		/* Lengths of outer headers have 16 bits. */
		if ((class->flags & refused) == refused ||
		    skb->len + list->grows + TAG_LEN + class->len + OPTION_LEN > 0xffff)
			return 0;
	}
	*found = class;
	return endpoint;
}

/* Counts a packet that ends here. */
static __always_inline void finish(__u32 port, __u32 flow, __u32 bytes)
{
	count_rx(count_of(port), bytes);
	serve(flow, bytes);
}

/* A packet that could not be changed after it had begun. */
static __noinline int lost(__u32 port, __u32 flow, __u32 bytes)
{
	finish(port, flow, bytes);
	return count_drop(port, DROP_HEADROOM);
}

static __always_inline int execute(struct __sk_buff *skb, struct weft_key *key,
				   const struct weft_list *list, __u32 port, __u32 flow)
{
	__u32 count = list->count, bytes = frame_bytes(skb), wire_len = bytes, tags, untagged;
	const struct weft_action *last;
	struct weft_endpoint *endpoint;
	struct weft_class *class;
	struct weft_port *out;
	bool has_sum;
	__u64 sum = 0;
	__u32 sent;

	if (!count) {
		finish(port, flow, bytes);
		return TC_ACT_SHOT;
	}
	last = last_of(list);
	if (!last)
		return hand_over(skb, port);
	tags = key->vlan ? tag_count(key) * TAG_LEN : 0;
	untagged = skb->gso_size ? 0 : bytes - tags;
	if (skb->gso_size && (list->max_len || last->kind == WEFT_ACTION_ENCAP ||
			      (last->kind == WEFT_ACTION_UPLINK && weft_config.uplink_max_len))) {
		__u32 stripped = bytes - skb->len;

		wire_len = segment_len(skb, key, ETH_LEN + tags - stripped);
		if (!wire_len)
			return hand_over(skb, port);
		wire_len += stripped;
	}
	if (list->max_len && wire_len > list->max_len)
		return hand_over(skb, port);
	if (count > 1 &&
	    !can_change(skb, key, list, ETH_LEN + tags - (bytes - skb->len), untagged))
		return hand_over(skb, port);
	switch (last->kind) {
	case WEFT_ACTION_OUTPUT:
		out = port_at(last->number);
		if (!can_output(out, untagged))
			return hand_over(skb, port);
		if (count > 1 && change_all(skb, key, list))
			return lost(port, flow, bytes);
		finish(port, flow, bytes);
		count_tx(count_of(last->number), frame_bytes(skb));
		return deliver(skb, key, out, true);
	case WEFT_ACTION_ENCAP:
		endpoint = can_encap(skb, key, list, last, wire_len, &class);
		if (!endpoint)
			return hand_over(skb, port);
		has_sum = class->flags & WEFT_CLASS_CHECKSUM && !skb->gso_size;
		if (has_sum && !sum_of_owed(skb, ETH_LEN + tags - (bytes - skb->len), &sum))
			return hand_over(skb, port);
		if (count > 1) {
			if (change_all(skb, key, list))
				return lost(port, flow, bytes);
			/* It may be another one now. */
			if (has_sum)
				sum_of_owed(skb, l3_offset(skb), &sum);
		}
		sent = frame_bytes(skb);
		switch (encap(skb, key, last, endpoint, sum)) {
		case ENCAPPED:
			break;
		case ENCAP_REFUSED:
			if (count == 1)
				return hand_over(skb, port);
			/* fall through */
		default:
			return lost(port, flow, bytes);
		}
		finish(port, flow, bytes);
		__sync_fetch_and_add(&endpoint->tx_packets, 1);
		__sync_fetch_and_add(&endpoint->tx_bytes, sent);
		return bpf_redirect(weft_config.uplink_ifindex, 0);
	case WEFT_ACTION_UPLINK:
		if (!weft_config.uplink_ifindex ||
		    (weft_config.uplink_max_len &&
		     wire_len + list->grows > weft_config.uplink_max_len))
			return hand_over(skb, port);
		if (count > 1 && change_all(skb, key, list))
			return lost(port, flow, bytes);
		finish(port, flow, bytes);
		count_tx(uplink_count(), frame_bytes(skb));
		return bpf_redirect(weft_config.uplink_ifindex, 0);
	case WEFT_ACTION_DROP:
		if (weft_config.watch_drops)
			return hand_over(skb, port);
		if (count > 1)
			change_all(skb, key, list);
		finish(port, flow, bytes);
		return count_drop(port, last->field);
	default:
		return hand_over(skb, port);
	}
}

SEC("tc")
int weft_vif(struct __sk_buff *skb)
{
	__u32 at = skb->ifindex & (WEFT_DEVICES - 1), port, number;
	struct weft_device *device = bpf_map_lookup_elem(&weft_devices, &at);
	struct weft_list *list;
	struct weft_flow *flow;
	struct weft_port *from;
	struct weft_key key;

	if (!device || device->ifindex != skb->ifindex)
		return TC_ACT_OK;
	port = device->port;
	from = port_at(port);
	if (!from || from->flags & WEFT_PORT_WATCHED)
		return hand_over(skb, port);
	if (parse(skb, &key, port, 0) != WEFT_PARSED)
		return miss(skb, port);
	number = lookup(&key);
	flow = flow_at(number);
	if (number == WEFT_NO_FLOW || !flow)
		return miss(skb, port);
	at = flow->list;
	list = bpf_map_lookup_elem(&weft_lists, &at);
	if (at == WEFT_LIST_HAND_OVER || !list)
		return hand_over(skb, port);
	return execute(skb, &key, list, port, number);
}

char _license[] SEC("license") __weak = "Dual BSD/GPL";
