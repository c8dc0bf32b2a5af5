package main

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"github.com/coracle-project/coracle/internal/atomicfile"
)

// settings are what up remembers from one time to the next, by the flags that set them. A zero
// value is not remembered.
func (o *upOptions) settings() map[string]any {
	return map[string]any{
		"runtime-config": &o.Config, "short-name-registry": &o.ShortNames, "bind-address": &o.Bind, "port": &o.Port,
		"kubelet-port": &o.KubeletPort, "service-cidr": &o.ServiceCIDR, "pod-cidr": &o.PodCIDR, "pod-network": &o.PodNetwork,
		"nodes": &o.Further, "nodes-cidr": &o.NodeCIDRs,
		"node-name": &o.Node, "node-ip": &o.NodeIPs, "pod-log-dir": &o.PodLogs, "cgroup-root": &o.CgroupRoot,
		"cluster-domain": &o.ClusterDomain, "cluster-dns": &o.ClusterDNS, "dns-stub-domain": &o.StubDomains, "resolv-conf": &o.ResolvConf,
		"etcd-servers": &o.Etcd, "etcd-peer-port": &o.EtcdPeerPort, "eviction-hard": &o.EvictionHard,
		"allowed-unsafe-sysctls": &o.UnsafeSysctls,
		"load-balancer-cidr":     &o.LoadBalancerCIDR, "load-balancer-interface": &o.LoadBalancerInterface,
		"network-policies":           &o.PoliciesOff,
		"encryption-provider-config": &o.EncryptionConfig, "audit-policy-file": &o.AuditPolicy, "audit-log-path": &o.AuditLog,
		"audit-webhook-config-file": &o.AuditWebhook, "etcd-quota": &o.EtcdQuota,
		"scheduler-config":      &o.SchedulerConfig,
		"authentication-config": &o.AuthenticationConfig, "authentication-token-webhook-config-file": &o.TokenWebhook,
		"authentication-token-webhook-version": &o.TokenWebhookVersion, "pod-security": &o.PodSecurity,
		"node-monitor-grace-period": &o.MonitorGrace, "cluster-signing-duration": &o.SigningDuration,
		"manifests": &o.Manifests, "images": &o.Images, "bgp-as": &o.BGPAS, "bgp-peer": &o.BGPPeers,
	}
}

// offFlag is a flag that is true unless it is given as false, so that its zero value, which is not
// remembered, is the default.
type offFlag bool

// Set implements pflag.Value, as do the others.
func (o *offFlag) Set(text string) error {
	on, err := strconv.ParseBool(text)
	if err != nil {
		return fmt.Errorf("%q is neither true nor false", text)
	}
	*o = offFlag(!on)
	return nil
}

func (offFlag) Type() string { return "bool" }

func (o offFlag) String() string { return strconv.FormatBool(!bool(o)) }

// standardOutput is what upstream's API server takes for its standard output instead of a file.
const standardOutput = "-"

// ofRuntime are the flags that coracled is started with. The others are the cluster process's.
var ofRuntime = []string{"runtime-config", "short-name-registry"}

// pathFlags are the settings that name files.
var pathFlags = []string{
	"runtime-config", "resolv-conf", "encryption-provider-config", "audit-policy-file", "audit-log-path", "audit-webhook-config-file",
	"scheduler-config", "authentication-config", "authentication-token-webhook-config-file",
}

// absolutePaths makes the paths of files absolute: the programs that read them run in /.
func (o *upOptions) absolutePaths() error {
	all := o.settings()
	for _, name := range pathFlags {
		file, _ := all[name].(*string)
		if *file == "" || *file == standardOutput {
			continue
		}
		path, err := filepath.Abs(*file)
		if err != nil {
			return err
		}
		*file = path
	}
	return nil
}

// follow takes over what last says for the flags that were not given, and returns those that say
// something else than last. What only the configuration file gave last is not taken over: the file
// says what holds.
func (o *upOptions) follow(last upOptions, given func(flag string) bool) (differ []string) {
	theirs := last.settings()
	for flag, mine := range o.settings() {
		now, before := reflect.ValueOf(mine).Elem(), reflect.ValueOf(theirs[flag]).Elem()
		ofFile := slices.Contains(last.FromFile, flag)
		switch {
		case !given(flag) && !ofFile && !before.IsZero():
			now.Set(before)
		case (given(flag) || ofFile) && !equal(now, before):
			differ = append(differ, flag)
		}
	}
	o.Restored, o.Server, o.PodRanges = last.Restored, last.Server, last.PodRanges
	o.Coracled, o.Boot = last.Coracled, last.Boot // until upCoracled has seen who starts it
	slices.Sort(differ)
	return differ
}

// equal compares settings. A list that was given as empty equals one that never was.
func equal(a, b reflect.Value) bool {
	if a.Kind() == reflect.Slice && a.Len() == 0 && b.Len() == 0 {
		return true
	}
	return reflect.DeepEqual(a.Interface(), b.Interface())
}

// differs is the error of an up with flags that what runs was not started with. wayOut ends it.
func (o *upOptions) differs(what string, flags []string, last upOptions, wayOut string) error {
	now, before := o.settings(), last.settings()
	var with, runs []string
	for _, flag := range flags {
		with = append(with, "--"+flag+shown(now[flag]))
		runs = append(runs, "--"+flag+shown(before[flag]))
	}
	return fmt.Errorf("up %s: %s runs with %s; nothing was changed: %s", strings.Join(with, " "), what, strings.Join(runs, " "), wayOut)
}

// shown is a setting as one types it after the name of its flag.
func shown(setting any) string {
	switch v := reflect.ValueOf(setting).Elem().Interface().(type) {
	case []string:
		if len(v) > 0 {
			return " " + strings.Join(v, ",")
		}
	case string:
		if v != "" {
			return " '" + v + "'"
		}
	case offFlag:
		return "=" + v.String()
	default:
		return fmt.Sprint(" ", v)
	}
	return " ''"
}

// check refuses what can be seen to be wrong before anything is started.
func (o *upOptions) check() error {
	if err := cmp.Or(o.checkPorts(), o.checkNodes(), o.checkBGP()); err != nil {
		return err
	}
	for _, ip := range append([]string{o.Bind}, o.NodeIPs...) {
		if _, err := netip.ParseAddr(ip); err != nil {
			return fmt.Errorf("up: %q is no IP address, such as 10.0.0.1; correct --bind-address or --node-ip", ip)
		}
	}
	networks, err := serviceNetworks(o.ServiceCIDR)
	if err != nil {
		return err
	}
	o.ServiceCIDR = networksText(networks) // it is compared as text
	for flag, path := range map[string]string{"pod-log-dir": o.PodLogs, "cgroup-root": o.CgroupRoot} {
		if !filepath.IsAbs(path) {
			return fmt.Errorf("up: --%s %q is no absolute path", flag, path)
		}
	}
	if o.Config != "" {
		if _, err := os.Stat(o.Config); err != nil {
			return fmt.Errorf("up: --runtime-config: %w", err)
		}
	}
	for _, dir := range [][2]string{{"manifests", o.Manifests}, {"images", o.Images}} {
		if dir[1] != "" && dir[1] != nothing && !filepath.IsAbs(dir[1]) {
			return fmt.Errorf("up: --%s %q is neither an absolute path nor %s", dir[0], dir[1], nothing)
		}
	}
	if o.AuditLog == standardOutput {
		return fmt.Errorf("up: --audit-log-path %s: the cluster's standard output is its own log, kube.log: name a file", standardOutput)
	}
	if o.timeout <= 0 {
		return fmt.Errorf("up: --timeout %s is not above 0", o.timeout)
	}
	return nil
}

func (o *upOptions) checkPorts() error {
	if o.Port < 1 || o.Port > 65535 {
		return fmt.Errorf("up: --port %d is not between 1 and 65535", o.Port)
	}
	if o.KubeletPort < 0 || o.KubeletPort > 65535 {
		return fmt.Errorf("up: --kubelet-port %d is not between 1 and 65535", o.KubeletPort)
	}
	if o.KubeletPort == o.Port {
		return fmt.Errorf("up: --kubelet-port %d is the API server's: choose another one", o.KubeletPort)
	}
	return nil
}

// remember writes what down and the next up have to know.
func (o upOptions) remember(p place) error {
	o.State = cmp.Or(o.State, p.state)
	data, err := json.MarshalIndent(o, "", "  ")
	if err != nil {
		return err
	}
	if err := o.keepReplaced(p); err != nil {
		return err
	}
	return atomicfile.Write(p.settings(), append(data, '\n'), 0o600)
}

// keepReplaced saves the settings that those of a snapshot are about to replace, next to the data
// that its restore has replaced: an operator who undoes the restore needs both. An interrupted
// restore has replaced neither.
func (o upOptions) keepReplaced(p place) error {
	var before upOptions
	data, err := os.ReadFile(p.settings())
	if o.Restored == "" || err != nil || json.Unmarshal(data, &before) != nil || before.Restored == o.Restored {
		return nil
	}
	kept := filepath.Join(p.kubeRoot(), o.Restored)
	if err := os.MkdirAll(kept, 0o700); err != nil {
		return fmt.Errorf("keep the settings of before the restore: %w", err)
	}
	if err := atomicfile.Write(filepath.Join(kept, filepath.Base(p.settings())), data, 0o600); err != nil {
		return fmt.Errorf("keep the settings of before the restore: %w", err)
	}
	return nil
}

// remembered is what the last up was given, and what a snapshot that was restored since then says;
// nothing if there was neither.
func remembered(p place) upOptions {
	var o upOptions
	data, err := os.ReadFile(p.settings())
	switch {
	case err != nil || json.Unmarshal(data, &o) != nil:
		o = upOptions{}
	case o.ServiceCIDR == "": // of a release without the flag
		o.ServiceCIDR = defaultServices
	}
	o.followRestored(p)
	return o
}

// followRestored takes over the settings of the snapshot that was restored last, once. A restore
// that is decided but not finished counts: the next start of the cluster finishes it. The files are
// written by cluster/apiserver/snapshot.
func (o *upOptions) followRestored(p place) {
	var restored struct {
		Keep     string            `json:"keep"`
		Settings map[string]string `json:"settings"`
	}
	for _, file := range []string{filepath.Join(p.kubeRoot(), "restore", "intent.json"), filepath.Join(p.kubeRoot(), "restored.json")} {
		data, err := os.ReadFile(file)
		if err == nil && json.Unmarshal(data, &restored) == nil {
			break
		}
	}
	if restored.Keep == o.Restored {
		return
	}
	o.Restored = restored.Keep
	if len(restored.Settings) == 0 { // saved without coracle
		return
	}
	if ranges := strings.Fields(restored.Settings[podRangesKey]); len(ranges) > 0 {
		o.PodCIDR, o.PodRanges = ranges, ranges
	}
	services := o.ServiceCIDR
	for flag, setting := range o.inSnapshots() {
		*setting = restored.Settings[flag]
	}
	if o.ServiceCIDR == "" {
		o.ServiceCIDR = defaultServices
	}
	// Outside of the Services' networks, an address would be taken for that of a DNS elsewhere.
	if before, err := serviceNetworks(services); err == nil && o.ServiceCIDR != services {
		now, _ := serviceNetworks(o.ServiceCIDR) // up says what is wrong with it
		o.ClusterDNS = slices.DeleteFunc(o.ClusterDNS, func(text string) bool {
			addr, err := netip.ParseAddr(text)
			return err == nil && within(before, addr) && !within(now, addr)
		})
	}
}

// inSnapshots are the settings that the cluster's objects depend on. A snapshot has those that are
// not empty.
func (o *upOptions) inSnapshots() map[string]*string {
	return map[string]*string{"service-cidr": &o.ServiceCIDR, "cluster-domain": &o.ClusterDomain, "node-name": &o.Node}
}

// podRangesKey is what a snapshot has PodRanges by, with spaces between them.
const podRangesKey = "pod-cidr"

// forSnapshot returns what a snapshot of the cluster has of these settings.
func (o *upOptions) forSnapshot() map[string]string {
	all := map[string]string{}
	for flag, value := range o.inSnapshots() {
		if *value != "" {
			all[flag] = *value
		}
	}
	if len(o.PodRanges) > 0 {
		all[podRangesKey] = strings.Join(o.PodRanges, " ")
	}
	return all
}

// restore makes o what is remembered again, after something else was.
func (o upOptions) restore(p place) error {
	if reflect.DeepEqual(o, upOptions{}) {
		if err := os.Remove(p.settings()); !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		return nil
	}
	return o.remember(p)
}
