package criconfig

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	v1 "k8s.io/api/core/v1"
)

const hostsPath = "/etc/hosts"

// hostsFile, in the pod's directory, is what is mounted there.
const hostsFile = "etc-hosts"

// The first lines of hosts files, by which people know that theirs is not read.
const (
	managedHosts     = "# Kubernetes-managed hosts file.\n"
	managedHostsNode = "# Kubernetes-managed hosts file (host network).\n"
)

// writeHosts writes the pod's hosts file and returns where it is.
func (m *Maker) writeHosts(pod *v1.Pod, ips []string) (string, error) {
	var content []byte
	if pod.Spec.HostNetwork {
		node, err := os.ReadFile(hostsPath)
		if err != nil {
			return "", err
		}
		content = append([]byte(managedHostsNode), node...)
	} else {
		name, domain, err := m.hostname(pod, m.ClusterDomain)
		if err != nil {
			return "", err
		}
		content = podHosts(ips, name, domain)
	}
	content = append(content, aliases(pod.Spec.HostAliases)...)
	file := filepath.Join(Dir(m.RootDir, pod.UID), hostsFile)
	// Written in place: containers that run have this very file mounted.
	if err := os.WriteFile(file, content, 0o644); err != nil {
		return "", err
	}
	return file, os.Chmod(file, 0o644) // whatever the umask is
}

// podHosts is the hosts file of a pod with a network of its own.
func podHosts(ips []string, name, domain string) []byte {
	var b bytes.Buffer
	b.WriteString(managedHosts)
	for _, line := range [][2]string{
		{"127.0.0.1", "localhost"},
		{"::1", "localhost ip6-localhost ip6-loopback"},
		{"fe00::0", "ip6-localnet"},
		{"fe00::0", "ip6-mcastprefix"},
		{"fe00::1", "ip6-allnodes"},
		{"fe00::2", "ip6-allrouters"},
	} {
		fmt.Fprintf(&b, "%s\t%s\n", line[0], line[1])
	}
	for _, ip := range ips {
		if domain != "" {
			fmt.Fprintf(&b, "%s\t%s.%s\t%s\n", ip, name, domain, name)
		} else {
			fmt.Fprintf(&b, "%s\t%s\n", ip, name)
		}
	}
	return b.Bytes()
}

func aliases(all []v1.HostAlias) []byte {
	if len(all) == 0 {
		return nil
	}
	var b bytes.Buffer
	b.WriteString("\n# Entries added by HostAliases.\n")
	for _, a := range all {
		fmt.Fprintf(&b, "%s\t%s\n", a.IP, strings.Join(a.Hostnames, "\t"))
	}
	return b.Bytes()
}
