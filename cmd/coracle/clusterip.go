package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/url"
	"strconv"
	"time"
)

// needed are the Services that every pod needs. status asks them from the node, at the addresses
// and in the way that pods do.
var needed = []struct {
	component, namespace, name string
	ask                        func(ctx context.Context, a *api, at, domain string) error
}{
	{"apiserver for pods", "default", "kubernetes", func(ctx context.Context, a *api, at, _ string) error {
		return (&api{server: "https://" + at, http: a.http}).ready(ctx)
	}},
	{"dns", "kube-system", "kube-dns", func(ctx context.Context, _ *api, at, domain string) error {
		resolver := net.Resolver{PreferGo: true, Dial: func(ctx context.Context, network, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, network, at)
		}}
		_, err := resolver.LookupHost(ctx, "kubernetes.default.svc."+domain+".")
		return err
	}},
}

// forPods says how the Services are that every pod needs. A cluster may be without DNS.
func forPods(ctx context.Context, a *api, p place) []health {
	domain := remembered(p).ClusterDomain
	if domain == "" {
		domain = "cluster.local"
	}
	var all []health
	for _, n := range needed {
		at, err := a.serviceAddress(ctx, n.namespace, n.name)
		if err == nil && at == "" {
			continue
		}
		if err == nil {
			if err = soon(ctx, func(ctx context.Context) error { return n.ask(ctx, a, at, domain) }); err != nil {
				err = fmt.Errorf("it does not answer at %s: %w; %s may tell why", at, err, p.kubeLog())
			}
		}
		all = append(all, line(n.component, "", "answers at "+at, err))
	}
	return all
}

// soon tries for a moment: right after up, the cluster may be about to answer.
func soon(ctx context.Context, try func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, longestTry)
	defer cancel()
	for {
		err := try(ctx)
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// serviceAddress returns the address and first port of a Service, "" if there is no such Service or
// it has no address.
func (a *api) serviceAddress(ctx context.Context, namespace, name string) (string, error) {
	body, err := a.open(ctx, "/api/v1/namespaces/"+namespace+"/services", url.Values{"fieldSelector": {"metadata.name=" + name}})
	if err != nil {
		return "", err
	}
	defer func() { _ = body.Close() }()
	var list struct {
		Items []struct {
			Spec struct {
				ClusterIP string `json:"clusterIP"`
				Ports     []struct {
					Port int `json:"port"`
				} `json:"ports"`
			} `json:"spec"`
		} `json:"items"`
	}
	if err := json.NewDecoder(body).Decode(&list); err != nil {
		return "", err
	}
	for _, s := range list.Items {
		if net.ParseIP(s.Spec.ClusterIP) != nil && len(s.Spec.Ports) > 0 {
			return net.JoinHostPort(s.Spec.ClusterIP, strconv.Itoa(s.Spec.Ports[0].Port)), nil
		}
	}
	return "", nil
}
