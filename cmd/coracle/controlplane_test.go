package main

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

func TestControlPlaneNodesAgree(t *testing.T) {
	first := upOptions{
		ServiceCIDR: "10.97.0.0/16", ClusterDNS: []string{"10.97.0.10"}, PoliciesOff: true, Node: "one", Bind: "10.0.0.1",
		NodeIPs: []string{"10.0.0.1"}, PodCIDR: []string{"10.86.0.0/16"}, PodNetwork: "none",
	}
	cluster := first.forControlPlane()
	if cluster.Node != "" || cluster.Bind != "" || len(cluster.NodeIPs) > 0 {
		t.Errorf("the other node would have settings of the first one's machine: %+v", cluster)
	}
	none := func(string) bool { return false }
	own := upOptions{ServiceCIDR: defaultServices, Node: "two", Bind: "10.0.0.2"}
	if err := own.followCluster(cluster, none); err != nil {
		t.Fatal(err)
	}
	if own.ServiceCIDR != first.ServiceCIDR || !slices.Equal(own.ClusterDNS, first.ClusterDNS) || !bool(own.PoliciesOff) ||
		!slices.Equal(own.PodCIDR, first.PodCIDR) || own.PodNetwork != "none" || own.Node != "two" || own.Bind != "10.0.0.2" {
		t.Errorf("it follows %+v", own)
	}
	own.ServiceCIDR = defaultServices
	err := own.followCluster(cluster, func(flag string) bool { return flag == "service-cidr" })
	if err == nil || !strings.Contains(err.Error(), "--service-cidr '"+defaultServices+"': the cluster has --service-cidr '10.97.0.0/16'") {
		t.Errorf("a network of its own: %v", err)
	}
}

// Regression: a second control-plane node with another key of encryption, another audit policy or
// other issuers of tokens than the first was let in. What the files have is compared by the API
// server.
func TestControlPlaneNodesHaveTheSameFiles(t *testing.T) {
	none := func(string) bool { return false }
	for _, flag := range filesOfCluster {
		t.Run(flag, func(t *testing.T) {
			with := func(file string) (o upOptions) {
				*o.settings()[flag].(*string) = file
				return o
			}
			for _, c := range []struct{ cluster, own, want string }{
				{"", "", ""},
				{"/theirs", "/mine", ""},
				{"/theirs", "", "the cluster has --" + flag + " /theirs: copy that file"},
				{"", "/mine", "the cluster has none"},
			} {
				data, err := json.Marshal(with(c.cluster).forControlPlane())
				var cluster upOptions
				if err == nil {
					err = json.Unmarshal(data, &cluster)
				}
				if err != nil {
					t.Fatal(err)
				}
				own := with(c.own)
				err = own.followCluster(cluster, none)
				if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
					t.Errorf("%q next to a cluster with %q: %v, want %q", c.own, c.cluster, err, c.want)
				}
				if *own.settings()[flag].(*string) != c.own {
					t.Errorf("it uses %s", *own.settings()[flag].(*string))
				}
				var told []string
				if c.own != "" {
					told = []string{"--shared-file", flag + "=" + c.own}
				}
				if got := own.sharedFiles(); !slices.Equal(got, told) {
					t.Errorf("the API server would be told %q", got)
				}
			}
		})
	}
}

// Regression: a join that failed after the machine had the cluster's keys left no settings, so the
// next up started a member with the defaults: on loopback, and without encryption.
func TestSettingsAreThereBeforeTheKeys(t *testing.T) {
	dir := t.TempDir()
	script := "#!/bin/sh\ncase \"$*\" in\n*--only-settings*) echo '{\"serviceCIDR\": \"10.97.0.0/16\", \"encryptionConfig\": \"/e\"}'; exit;;\nesac\n" +
		"[ ! -e " + dir + "/keys ] || mkdir " + dir + "/root/kube/pki\necho 'coracle-kube: refused' >&2; exit 1\n"
	if err := os.WriteFile(filepath.Join(dir, "coracle-kube"), []byte(script), 0o700); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
	p := place{root: filepath.Join(dir, "root"), state: filepath.Join(dir, "state")}
	if err := os.MkdirAll(p.kubeRoot(), 0o700); err != nil {
		t.Fatal(err)
	}
	enter := func() {
		t.Helper()
		o := upOptions{Node: "two", Bind: "10.0.0.2", ServiceCIDR: defaultServices, EncryptionConfig: "/mine", timeout: time.Minute}
		err := o.enterControlPlane(t.Context(), p, func(string) bool { return false }, newSteps(t.Output()))
		if err == nil || !strings.Contains(err.Error(), "refused") {
			t.Errorf("the join: %v", err)
		}
	}
	enter()
	if _, err := os.Stat(p.settings()); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a join that changed nothing is remembered: %v", err)
	}
	if err := os.WriteFile(filepath.Join(dir, "keys"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	enter()
	if got := remembered(p); got.Bind != "10.0.0.2" || got.ServiceCIDR != "10.97.0.0/16" || got.EncryptionConfig != "/mine" {
		t.Errorf("with the keys, the next up would follow %+v", got)
	}
}

// Regression: up --join took its secrets as arguments only, which every user of the machine can
// read.
func TestSecretsInFiles(t *testing.T) {
	dir := t.TempDir()
	token, key := filepath.Join(dir, "token"), filepath.Join(dir, "key")
	for file, text := range map[string]string{token: someToken + "\n", key: "00ff\n", filepath.Join(dir, "two"): "a b\n"} {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []struct {
		args        []string
		input, want string // the token and the key, or the error
	}{
		{[]string{"--token-file", token, "--certificate-key-file", key}, "", someToken + " 00ff"},
		{[]string{"--token-file", "-", "--certificate-key-file", key}, someToken, someToken + " 00ff"},
		{[]string{"--token-file", token, "--certificate-key-file", "-"}, "00ff", someToken + " 00ff"},
		{[]string{"--token", "a", "--certificate-key", "b"}, "", "a b"},
		{[]string{"--token-file", "-", "--certificate-key-file", "-"}, someToken, "standard input can hold the token or the certificate key"},
		{[]string{"--certificate-key-file", filepath.Join(dir, "two")}, "", "it has to hold one certificate key and nothing else"},
		{[]string{"--token-file", filepath.Join(dir, "none")}, "", "--token-file: open"},
	} {
		cmd := upCommand(&place{})
		if err := cmd.ParseFlags(c.args); err != nil {
			t.Fatal(err)
		}
		err := readSecrets(cmd.Flags(), strings.NewReader(c.input))
		flags := cmd.Flags()
		got := flags.Lookup("token").Value.String() + " " + flags.Lookup("certificate-key").Value.String()
		if err != nil {
			got = err.Error()
		} else if !flags.Changed("token") || !flags.Changed("certificate-key") {
			t.Errorf("%v: up would say that one is missing", c.args)
		}
		if got != c.want && (err == nil || !strings.Contains(got, c.want)) {
			t.Errorf("%v: %q, want %q", c.args, got, c.want)
		}
	}
}
