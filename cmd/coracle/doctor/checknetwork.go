package doctor

import (
	"fmt"
	"slices"
	"strings"
)

// podRanges is how remedies name the ranges of pods.
func (n *Network) podRanges() []string {
	if len(n.Subnets) > 0 {
		return n.Subnets
	}
	return []string{"PODS"} // CNI's: the plugins' configuration has it
}

func checkFirewalls(f *Facts) []Finding {
	n := &f.Network
	var all []Finding
	for _, w := range n.Firewalls {
		all = append(all, n.judge(w))
	}
	if n.LegacyUnread != "" {
		all = append(all, Finding{"firewall", Warning, "there are rules of iptables-legacy, which may drop pods' packets and cannot be read: " +
			n.LegacyUnread, "install the package iptables, and look with: iptables-legacy -S"})
	}
	if n.Err != "" {
		all = append(all, Finding{"network", Warning, "not all of the network could be looked at: " + n.Err, "sudo coracle doctor"})
	}
	if len(all) == 0 {
		return one("firewall", OK, "no other firewall drops what this node forwards, or gets from its pods", "")
	}
	return all
}

// judge tells of a firewall that drops pods' packets.
func (n *Network) judge(w Firewall) Finding {
	pods, packets := "pods", ""
	if w.Family != "" {
		pods, packets = "pods with addresses of "+w.Family, w.Family+" packets of "
	}
	what := fmt.Sprintf("chain %s of table %s drops %swhat this node forwards, and no rule of it lets pods' packets and the replies to "+
		"them through: "+
		"%s may not reach each other or beyond this node", w.Chain, w.Table, packets, pods)
	remedy := n.letThrough(w.Manager)
	if w.Keeps != "" {
		what = fmt.Sprintf("chain %s of table %s drops %swhat pods send to this node: %s may not reach %s", w.Chain, w.Table, packets, pods,
			w.Keeps)
		remedy = n.letIn(w.Manager)
	}
	if w.Manager != "" {
		what = w.Manager + ": " + what
	}
	if w.Family != "" {
		what += "; whether pods have such addresses is not known here: the configuration of CNI's plugins says"
	}
	return Finding{"firewall", Warning, what, remedy}
}

// letIn says how to let what pods send to their node through a firewall.
func (n *Network) letIn(manager string) string {
	var commands []string
	for _, r := range n.podRanges() {
		iptables := "iptables"
		if strings.Contains(r, ":") {
			iptables = "ip6tables"
		}
		switch manager {
		case "firewalld":
			return n.letThrough(manager)
		case "ufw":
			commands = append(commands, "ufw allow from "+r)
		case "iptables":
			commands = append(commands, iptables+" -I INPUT -s "+r+" -j ACCEPT")
		case "iptables-legacy":
			commands = append(commands, iptables+"-legacy -I INPUT -s "+r+" -j ACCEPT")
		default:
			return "accept packets from " + strings.Join(n.podRanges(), " and ") + " in that chain"
		}
	}
	return strings.Join(commands, " && ")
}

// letThrough says how to let pods' packets through a firewall.
func (n *Network) letThrough(manager string) string {
	if !slices.Contains([]string{"firewalld", "ufw", "docker", "iptables-legacy"}, manager) {
		return "accept packets from and to " + strings.Join(n.podRanges(), " and ") + " in that chain"
	}
	var commands []string
	for _, r := range n.podRanges() {
		iptables := "iptables"
		if strings.Contains(r, ":") {
			iptables = "ip6tables"
		}
		switch manager {
		case "firewalld":
			commands = append(commands, "firewall-cmd --permanent --zone=trusted --add-source="+r)
		case "ufw":
			commands = append(commands, "ufw route allow from "+r, "ufw route allow to "+r, "ufw allow from "+r)
		case "docker":
			commands = append(commands, iptables+" -I DOCKER-USER -s "+r+" -j ACCEPT", iptables+" -I DOCKER-USER -d "+r+" -j ACCEPT")
		default:
			commands = append(commands, iptables+"-legacy -I FORWARD -s "+r+" -j ACCEPT", iptables+"-legacy -I FORWARD -d "+r+" -j ACCEPT")
		}
	}
	if manager == "firewalld" {
		commands = append(commands, "firewall-cmd --reload")
	}
	return strings.Join(commands, " && ")
}

// How full the table of connections may be.
const warnTracked, errTracked = 80, 98

func checkConntrack(f *Facts) []Finding {
	n := &f.Network
	if n.TrackedMax == 0 {
		return nil
	}
	percent := n.Tracked * 100 / n.TrackedMax
	what := fmt.Sprintf("%d of at most %d connections are tracked", n.Tracked, n.TrackedMax)
	remedy := fmt.Sprintf("sysctl -w net.netfilter.nf_conntrack_max=%d, and the same in /etc/sysctl.d; conntrack -L shows whose they are",
		4*n.TrackedMax)
	switch {
	case percent >= errTracked:
		return one("conntrack", Error, what+": new ones are dropped", remedy)
	case percent >= warnTracked:
		return one("conntrack", Warning, what+": when the table is full, new ones are dropped", remedy)
	}
	return one("conntrack", OK, what, "")
}

func checkMTU(f *Facts) []Finding {
	n := &f.Network
	if n.Uplink.Name == "" {
		return nil
	}
	larger := func(what string, mtu int) string {
		return fmt.Sprintf("%s: an MTU of %d, more than %s has, %d: large packets of pods are lost or fragmented", what, mtu, n.Uplink.Name,
			n.Uplink.MTU)
	}
	if f.CNI.File == "" && n.MTU > n.Uplink.MTU {
		return one("mtu", Warning, larger("network.mtu", n.MTU), fmt.Sprintf("set network.mtu = %d or 0, restart coracled, and recreate the pods",
			n.Uplink.MTU))
	}
	var links []string
	most := 0
	for _, l := range n.PodLinks {
		if l.MTU > n.Uplink.MTU {
			links, most = append(links, l.Name), max(most, l.MTU)
		}
	}
	if len(links) > 0 {
		remedy := "recreate the pods: coracled takes the MTU of the default route's interface when it starts"
		if f.CNI.File != "" {
			remedy = fmt.Sprintf("set \"mtu\": %d in %s, and recreate the pods", n.Uplink.MTU, f.CNI.File)
		}
		return one("mtu", Warning, larger(fmt.Sprintf("links of %d pods (%s)", len(links), some(links)), most), remedy)
	}
	return one("mtu", OK, fmt.Sprintf("no pod's link has a larger one than %s, %d", n.Uplink.Name, n.Uplink.MTU), "")
}

// some are the first of many names.
func some(names []string) string {
	const most = 3
	if len(names) > most {
		return strings.Join(names[:most], ", ") + "…"
	}
	return strings.Join(names, ", ")
}

// checkForwarding is for nodes that have pods: the network turns it on with the first one.
func checkForwarding(f *Facts) []Finding {
	n := &f.Network
	ipv6 := slices.ContainsFunc(n.Subnets, func(s string) bool { return strings.Contains(s, ":") })
	switch {
	case len(n.PodLinks) == 0:
		return nil
	case !n.Forwards4:
		return one("forwarding", Error, "net.ipv4.ip_forward is 0: packets of pods do not leave their node, nor reach other pods",
			"sysctl -w net.ipv4.ip_forward=1, and remove what sets it to 0 from /etc/sysctl.conf and /etc/sysctl.d")
	case ipv6 && !n.Forwards6:
		return one("forwarding", Error, "net.ipv6.conf.all.forwarding is 0: IPv6 packets of pods do not leave their node, nor reach other pods",
			"sysctl -w net.ipv6.conf.all.forwarding=1, and remove what sets it to 0 from /etc/sysctl.conf and /etc/sysctl.d")
	}
	return one("forwarding", OK, "this node forwards packets of its pods", "")
}

// How CNI plugins have packets go.
var (
	bridgedPlugins = []string{"bridge", "flannel", "weave-net"}            // between pods of a node by a bridge
	passedPlugins  = []string{"macvlan", "ipvlan", "host-device", "sriov"} // past the node's network stack
	ownPolicies    = []string{"calico", "cilium-cni", "antrea", "kube-ovn", "ovn-k8s-cni-overlay"}
)

func checkPolicy(f *Facts) []Finding {
	const check = "networkpolicy"
	n, hooks := &f.Network, "the hooks where NetworkPolicy is enforced"
	if f.CNI.Err != "" {
		return nil // checkCNI has told it
	}
	if f.CNI.File == "" {
		return one(check, OK, "packets of pods cross "+hooks+": the built-in network routes them", "")
	}
	plugin := ""
	if len(f.CNI.Plugins) > 0 {
		plugin = f.CNI.Plugins[0]
	}
	switch {
	case slices.Contains(bridgedPlugins, plugin) && n.Bridged4 && n.Bridged6:
		return one(check, OK, "packets of pods cross "+hooks+": br_netfilter shows them those of "+plugin, "")
	case slices.Contains(bridgedPlugins, plugin):
		return one(check, Warning,
			"packets between pods of this node do not cross "+hooks+": the plugin "+plugin+" has them cross a bridge, without br_netfilter",
			"modprobe br_netfilter && sysctl -w net.bridge.bridge-nf-call-iptables=1 net.bridge.bridge-nf-call-ip6tables=1, and the same in "+
				"/etc/modules-load.d and /etc/sysctl.d; or use the built-in network")
	case slices.Contains(passedPlugins, plugin):
		return one(check, Warning, "packets of pods do not cross "+hooks+": the plugin "+plugin+" sends them past the node's network stack",
			"use the built-in network, or a plugin that routes (ptp)")
	case slices.Contains(ownPolicies, plugin):
		return one(check, OK, "the plugin "+plugin+" has its own NetworkPolicy: "+hooks+" may not see all packets", "")
	case plugin == "ptp":
		return one(check, OK, "packets of pods cross "+hooks+": the plugin ptp routes them", "")
	}
	return one(check, OK, "whether packets of pods cross "+hooks+" depends on the plugin "+plugin+", which is not known here", "")
}

func checkNodePorts(f *Facts) []Finding {
	n := &f.Network
	var all []Finding
	for _, l := range n.Listeners {
		at := fmt.Sprintf("%s port %d of %s", l.Protocol, l.Port, l.Address)
		who := l.Process
		if who == "" {
			who = "a process"
		}
		switch {
		case slices.Contains(n.NodePorts, l.NodePort):
			all = append(all, Finding{
				"nodeports", Error, fmt.Sprintf("%s listens on %s, which is a Service's node port: its connections go to the Service", who, at),
				"stop it or give it another port, or give the Service another nodePort",
			})
		case l.Process == "coracle-kube" || l.Process == "kube-proxy": // healthCheckNodePorts
		default:
			all = append(all, Finding{
				"nodeports", Warning, fmt.Sprintf("%s listens on %s, in the range of node ports: a Service that gets this port takes its connections",
					who, at),
				fmt.Sprintf("give it a port outside of %d to %d", firstNodePort, lastNodePort),
			})
		}
	}
	if len(all) == 0 {
		return one("nodeports", OK, "nothing else listens on node ports", "")
	}
	return all
}

// checkCluster tells what the cluster process says of its parts.
func checkCluster(f *Facts) []Finding {
	c := &f.Cluster
	if c.NotAllowed {
		return one("cluster", Warning, "the cluster process is not checked: only root may ask it", "sudo coracle doctor")
	}
	if c.Err != "" {
		return one("cluster", Error, "the cluster process does not answer: "+c.Err, "coracle status; kube.log says more")
	}
	var all []Finding
	for _, p := range c.Parts {
		switch {
		case !p.Healthy:
			all = append(all, Finding{
				"cluster", Error, p.Component + ": " + p.Message,
				"docs/kubernetes.md, \"When something is wrong\"; kube.log says more",
			})
		case len(p.Warnings) > 0:
			for _, w := range p.Warnings {
				all = append(all, Finding{"cluster", Warning, p.Component + ": " + w, "docs/kubernetes.md says what is acted on"})
			}
		default:
			all = append(all, Finding{"cluster", OK, p.Component + ": " + p.Message, ""})
		}
	}
	return all
}
