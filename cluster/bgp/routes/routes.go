// Package routes is the file by which the cluster's process tells coracle-bgp what this node
// announces:
//
//	{
//	  "version": 1,
//	  "nextHops": ["10.0.0.1", "fd00::1"],
//	  "prefixes": ["10.85.0.0/24", "192.0.2.10/32", "fd85:c0ac:1e00::/64"]
//	}
//
// Each prefix is announced with the next hop of its family. It is a file and not a call, since a
// file outlives restarts of both processes: coracle-bgp announces all routes at once when it starts
// again, also while the API server does not answer, and needs no access to the cluster.
package routes

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"slices"
)

// File is the name of the file in the directory that both processes know.
const File = "routes.json"

const (
	version = 1
	// longest is the largest file in bytes, and most the largest number of prefixes: those of some
	// thousand Services.
	longest = 4 << 20
	most    = 20_000
)

// Routes are what a node announces.
type Routes struct {
	Version int `json:"version"`
	// NextHops are the node's addresses, one of each family at most.
	NextHops []netip.Addr `json:"nextHops"`
	// Prefixes are sorted, each once.
	Prefixes []netip.Prefix `json:"prefixes"`
	// LeftOut is how many prefixes were too many.
	LeftOut int `json:"-"`
}

// New returns routes in the order in which a file has them: the networks of pods, and addresses of
// Services as many as the limit leaves room for. Prefixes of a family without a next hop are left
// out.
func New(nextHops []netip.Addr, pods, services []netip.Prefix) Routes {
	r := Routes{Version: version, NextHops: []netip.Addr{}, Prefixes: []netip.Prefix{}}
	for _, a := range nextHops {
		if a = a.Unmap(); !r.NextHop(a).IsValid() {
			r.NextHops = append(r.NextHops, a)
		}
	}
	r.add(pods)
	r.add(services)
	slices.SortFunc(r.Prefixes, netip.Prefix.Compare)
	r.Prefixes = slices.Compact(r.Prefixes)
	return r
}

// add adds prefixes up to the limit. Which are too many does not depend on their order.
func (r *Routes) add(prefixes []netip.Prefix) {
	var all []netip.Prefix
	for _, p := range prefixes {
		if p.IsValid() && r.NextHop(p.Addr()).IsValid() {
			all = append(all, p.Masked())
		}
	}
	slices.SortFunc(all, netip.Prefix.Compare)
	all = slices.Compact(all)
	fit := min(len(all), most-len(r.Prefixes))
	r.Prefixes = append(r.Prefixes, all[:fit]...)
	r.LeftOut += len(all) - fit
}

// NextHop returns the next hop of the family of a, the zero Addr if there is none.
func (r Routes) NextHop(a netip.Addr) netip.Addr {
	for _, hop := range r.NextHops {
		if hop.Is4() == a.Is4() {
			return hop
		}
	}
	return netip.Addr{}
}

// Encode returns the content of the file.
func (r Routes) Encode() ([]byte, error) {
	data, err := json.MarshalIndent(r, "", "  ")
	return append(data, '\n'), err
}

// Decode reads a file, and refuses one that Encode does not write.
func Decode(from io.Reader) (Routes, error) {
	data, err := io.ReadAll(io.LimitReader(from, longest+1))
	if err != nil {
		return Routes{}, err
	}
	if len(data) > longest {
		return Routes{}, fmt.Errorf("it has more than %d bytes", longest)
	}
	var r Routes
	d := json.NewDecoder(bytes.NewReader(data))
	d.DisallowUnknownFields()
	if err := d.Decode(&r); err != nil {
		return Routes{}, err
	}
	if r.Version != version {
		return Routes{}, fmt.Errorf("version %d is unknown: the programs are of different releases", r.Version)
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return Routes{}, errors.New("something follows the routes")
	}
	return r, r.check()
}

func (r Routes) check() error {
	families := map[bool]bool{}
	for _, hop := range r.NextHops {
		if !hop.IsValid() || hop.Is4In6() || hop.Zone() != "" || hop.IsUnspecified() || families[hop.Is4()] {
			return fmt.Errorf("next hop %q: one plain address of each family is allowed", hop)
		}
		families[hop.Is4()] = true
	}
	if len(r.Prefixes) > most {
		return fmt.Errorf("%d prefixes are more than %d", len(r.Prefixes), most)
	}
	for _, p := range r.Prefixes {
		switch {
		case !p.IsValid() || p.Addr().Is4In6() || p != p.Masked():
			return fmt.Errorf("%q is no network", p)
		case p.Bits() == 0:
			return fmt.Errorf("%s: a node announces no default route", p)
		case !families[p.Addr().Is4()]:
			return fmt.Errorf("%s has no next hop of its family", p)
		}
	}
	return nil
}
