package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"os"
	"strconv"
	"time"

	"sigs.k8s.io/yaml"
)

// api is a client of the API server, with no more to it than up and status need: the real
// client's dependencies are many times the size of this program.
type api struct {
	server string
	http   *http.Client
}

// openAPI returns a client with the identity in a kubeconfig file of ours: one cluster, one user,
// all credentials inside.
func openAPI(kubeconfig string) (*api, error) {
	data, err := os.ReadFile(kubeconfig)
	if err != nil {
		return nil, err
	}
	var file struct {
		Clusters []struct {
			Cluster struct {
				Server string `json:"server"`
				CA     []byte `json:"certificate-authority-data"`
			} `json:"cluster"`
		} `json:"clusters"`
		Users []struct {
			User struct {
				Certificate []byte `json:"client-certificate-data"`
				Key         []byte `json:"client-key-data"`
			} `json:"user"`
		} `json:"users"`
	}
	if err := yaml.Unmarshal(data, &file); err != nil {
		return nil, fmt.Errorf("%s: %w", kubeconfig, err)
	}
	if len(file.Clusters) != 1 || len(file.Users) != 1 {
		return nil, fmt.Errorf("%s: it has %d clusters and %d users, and should have one each", kubeconfig, len(file.Clusters), len(file.Users))
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(file.Clusters[0].Cluster.CA) {
		return nil, fmt.Errorf("%s: no CA certificate in it", kubeconfig)
	}
	pair, err := tls.X509KeyPair(file.Users[0].User.Certificate, file.Users[0].User.Key)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", kubeconfig, err)
	}
	return &api{
		server: file.Clusters[0].Cluster.Server,
		http: &http.Client{Transport: &http.Transport{
			TLSClientConfig: &tls.Config{RootCAs: roots, Certificates: []tls.Certificate{pair}, MinVersion: tls.VersionTLS12},
		}},
	}, nil
}

// open asks for path; the caller closes what it gets.
func (a *api) open(ctx context.Context, path string, query url.Values) (io.ReadCloser, error) {
	resp, err := a.send(ctx, http.MethodGet, path+"?"+query.Encode())
	if err != nil {
		return nil, err
	}
	if resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("%s: %w", path, refusal(resp))
	}
	return resp.Body, nil
}

func (a *api) send(ctx context.Context, method, path string) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, method, a.server+path, nil)
	if err != nil {
		return nil, err
	}
	req.Header.Set("Accept", "application/json")
	return a.http.Do(req)
}

// refusal is the error that an answer tells, which it closes.
func refusal(resp *http.Response) error {
	defer func() { _ = resp.Body.Close() }()
	said, _ := io.ReadAll(io.LimitReader(resp.Body, 1024))
	return fmt.Errorf("%s: %s", resp.Status, said)
}

// deleteNode deletes a Node, if there is one.
func (a *api) deleteNode(ctx context.Context, name string) error {
	resp, err := a.send(ctx, http.MethodDelete, "/api/v1/nodes/"+url.PathEscape(name))
	if err != nil {
		return err
	}
	if resp.StatusCode != http.StatusOK && resp.StatusCode != http.StatusNotFound {
		return fmt.Errorf("delete node %s: %w", name, refusal(resp))
	}
	return resp.Body.Close()
}

// ready asks whether the API server is.
func (a *api) ready(ctx context.Context) error {
	body, err := a.open(ctx, "/readyz", nil)
	if err != nil {
		return err
	}
	return body.Close()
}

// node is what up and status look at in a Node.
type node struct {
	Metadata struct {
		Name            string `json:"name"`
		ResourceVersion string `json:"resourceVersion"`
	} `json:"metadata"`
	Status struct {
		Conditions []condition `json:"conditions"`
		NodeInfo   struct {
			KubeletVersion string `json:"kubeletVersion"`
		} `json:"nodeInfo"`
		Addresses []struct {
			Type    string `json:"type"`
			Address string `json:"address"`
		} `json:"addresses"`
		DaemonEndpoints struct {
			KubeletEndpoint struct {
				Port int `json:"Port"`
			} `json:"kubeletEndpoint"`
		} `json:"daemonEndpoints"`
	} `json:"status"`
}

// ready is whether the node is Ready, by what its kubelet has said since a time.
func (n *node) ready(since time.Time) condition {
	for _, c := range n.Status.Conditions {
		if c.Type == "Ready" && !c.Heartbeat.Before(since.Truncate(time.Second)) {
			return c
		}
	}
	return condition{Status: "False", Message: "its kubelet has not said anything yet"}
}

// noPlugin is the reason of a node's condition Ready where the cluster leaves pods to a network
// plugin, and that is missing: cluster/kubelet/node.
const noPlugin = "NetworkPluginNotReady"

// kubelet is where the node's kubelet is called, HOST:PORT, "" if that is not known.
func (n *node) kubelet() string {
	port := n.Status.DaemonEndpoints.KubeletEndpoint.Port
	for _, a := range n.Status.Addresses {
		if a.Type == "InternalIP" && port != 0 {
			return net.JoinHostPort(a.Address, strconv.Itoa(port))
		}
	}
	return ""
}

// nodes lists the cluster's nodes.
func (a *api) nodes(ctx context.Context) ([]node, error) {
	var list struct {
		Items []node `json:"items"`
	}
	err := a.ask(ctx, "/api/v1/nodes", nil, &list)
	return list.Items, err
}

// servers lists the cluster's API servers.
func (a *api) servers(ctx context.Context) (all []netip.AddrPort, err error) {
	var slice struct {
		Ports []struct {
			Port uint16 `json:"port"`
		} `json:"ports"`
		Endpoints []struct {
			Addresses []string `json:"addresses"`
		} `json:"endpoints"`
	}
	err = a.ask(ctx, "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices/kubernetes", nil, &slice)
	for _, e := range slice.Endpoints {
		for _, text := range e.Addresses {
			if addr, aerr := netip.ParseAddr(text); aerr == nil && len(slice.Ports) > 0 {
				all = append(all, netip.AddrPortFrom(addr, slice.Ports[0].Port))
			}
		}
	}
	return all, err
}

// etcdMember is a member of the cluster's own etcd: the name of its node, and where others call it.
type etcdMember struct {
	Name string `json:"name"`
	URL  string `json:"url"`
}

// members lists them.
func (a *api) members(ctx context.Context) (all []etcdMember, err error) {
	err = a.ask(ctx, "/coracle/members", nil, &all)
	return all, err
}

// awaitNode returns when the kubelet of the node called name has said since a time that it is
// Ready: what an earlier one said is in etcd still. A node that waits for a network plugin only is
// as good: the plugin may be applied next. waits says why it does. When ctx ends before, the error
// says what was missing.
func (a *api) awaitNode(ctx context.Context, name string, since time.Time) (waits string, err error) {
	last := condition{Message: "it has not registered"}
	for {
		err := a.watchNode(ctx, name, since, &last)
		switch {
		case err == nil && last.Reason == noPlugin:
			return last.Message, nil
		case err == nil:
			return "", nil
		case ctx.Err() != nil:
			return "", fmt.Errorf("node %s is not Ready: %s", name, last.Message)
		}
		// A watch ends now and then, tidily or not; anything else is an answer.
		if !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) {
			return "", fmt.Errorf("node %s: %w", name, err)
		}
	}
}

func (a *api) watchNode(ctx context.Context, name string, since time.Time, last *condition) error {
	body, err := a.open(ctx, "/api/v1/nodes", url.Values{"watch": {"1"}, "fieldSelector": {"metadata.name=" + name}})
	if err != nil {
		return err
	}
	defer func() { _ = body.Close() }()
	events := json.NewDecoder(body)
	for {
		var event struct {
			Type   string `json:"type"`
			Object node   `json:"object"`
		}
		if err := events.Decode(&event); err != nil {
			return err
		}
		if event.Type == "ERROR" {
			return io.EOF
		}
		if *last = event.Object.ready(since); last.Status == "True" || last.Reason == noPlugin {
			return nil
		}
	}
}
