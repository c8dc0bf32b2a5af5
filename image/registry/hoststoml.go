package registry

import (
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/pelletier/go-toml/v2/unstable"
	"golang.org/x/net/http/httpguts"

	"github.com/coracle-project/coracle/internal/stricttoml"
)

// hostsFile is a hosts.toml as containerd has it (docs/hosts.md there): the mirrors in
// the order of the file, then the server, whose settings are the
// keys at the top. Unlike there, a key that does not exist is an error.
type hostsFile struct {
	hostTable
	// Server is the registry itself, if it is not where its name says.
	Server string               `toml:"server"`
	Host   map[string]hostTable `toml:"host"`
}

type hostTable struct {
	Capabilities []string `toml:"capabilities"`
	// CA is a file or several.
	CA any `toml:"ca"`
	// Client is a file with certificate and key, several such, or pairs of files.
	Client       any            `toml:"client"`
	SkipVerify   bool           `toml:"skip_verify"`
	Header       map[string]any `toml:"header"` // a string or several
	OverridePath bool           `toml:"override_path"`
	DialTimeout  string         `toml:"dial_timeout"`
}

// parseHosts reads a hosts.toml in dir, to which relative paths refer. registry is whose.
func parseHosts(data []byte, dir, registry string) ([]Host, error) {
	var f hostsFile
	if err := stricttoml.Decode(data, &f); err != nil {
		return nil, err
	}
	var hosts []Host
	for _, server := range orderOfHosts(data, f.Host) {
		h, err := f.Host[server].at(server, dir)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", stricttoml.KeyName([]string{"host", server}), err)
		}
		h.mirror = h.Host != registry && h.Host != apiHost(registry)
		hosts = append(hosts, h)
	}
	server := f.Server
	if server == "" {
		server = apiHost(registry)
	}
	h, err := f.at(server, dir)
	if err != nil {
		return nil, err
	}
	if f.Server == "" && isLoopback(h.Host) && len(h.CAs)+len(h.Pairs) == 0 && !h.SkipVerify {
		h.Scheme, h.guess = "http", true
	}
	return append(hosts, h), nil
}

// at is the host that a table describes.
func (t hostTable) at(server, dir string) (Host, error) {
	h := Host{SkipVerify: t.SkipVerify}
	if err := t.address(&h, server); err != nil {
		return h, err
	}
	var err error
	if h.Can, err = capabilities(t.Capabilities); err != nil {
		return h, err
	}
	if h.CAs, err = files(t.CA, dir); err != nil {
		return h, fmt.Errorf("ca: %w", err)
	}
	if h.Pairs, err = pairs(t.Client, dir); err != nil {
		return h, fmt.Errorf("client: %w", err)
	}
	if h.Header, err = header(t.Header); err != nil {
		return h, fmt.Errorf("header: %w", err)
	}
	if t.DialTimeout != "" {
		if h.DialTimeout, err = time.ParseDuration(t.DialTimeout); err != nil || h.DialTimeout <= 0 {
			return h, fmt.Errorf("dial_timeout: %q is not a duration such as \"3s\"", t.DialTimeout)
		}
	}
	return h, nil
}

// address reads host[:port] or a URL. The API is at /v2 below it, unless override_path
// says that the path is complete.
func (t hostTable) address(h *Host, server string) error {
	if !strings.Contains(server, "://") {
		server = "https://" + server
	}
	u, err := url.Parse(server)
	if err != nil {
		return fmt.Errorf("%q is not a URL", server)
	}
	if u.Scheme != "http" && u.Scheme != "https" {
		return fmt.Errorf("%q: scheme %q is neither http nor https", server, u.Scheme)
	}
	if u.Host == "" || u.User != nil || u.RawQuery != "" || u.Fragment != "" {
		return fmt.Errorf("%q is not http(s)://host[:port][/path]", server)
	}
	h.Scheme, h.Host, h.Path = u.Scheme, u.Host, u.Path
	if h.Path != "" {
		h.Path = path.Clean("/" + h.Path)
	}
	if !t.OverridePath && !strings.HasSuffix(h.Path, "/v2") {
		h.Path = strings.TrimSuffix(h.Path, "/") + "/v2"
	}
	h.Path = strings.TrimSuffix(h.Path, "/")
	return nil
}

func capabilities(names []string) (Capability, error) {
	if len(names) == 0 {
		return everything, nil
	}
	var all Capability
	for _, name := range names {
		i := slices.Index(capabilityNames, strings.ToLower(name))
		if i < 0 {
			return 0, fmt.Errorf("capabilities: %q is none of %s", name, everything)
		}
		all |= 1 << i
	}
	return all, nil
}

// files reads a path or a list of them.
func files(v any, dir string) ([]string, error) {
	texts, err := texts(v)
	for i, p := range texts {
		texts[i] = below(dir, p)
	}
	return texts, err
}

// pairs reads a path, a list of them, or a list of [certificate, key]. An empty key is in the
// certificate's file, as in the example of containerd's docs/hosts.md.
func pairs(v any, dir string) ([]KeyPair, error) {
	list, ok := v.([]any)
	if !ok && v != nil {
		list = []any{v}
	}
	var all []KeyPair
	for _, item := range list {
		f, err := texts(item)
		if err != nil {
			return nil, err
		}
		if len(f) == 2 && f[1] == "" {
			f = f[:1]
		}
		if len(f) < 1 || len(f) > 2 || f[0] == "" {
			return nil, fmt.Errorf("%v is neither one file nor a certificate and its key", item)
		}
		all = append(all, KeyPair{Cert: below(dir, f[0]), Key: below(dir, f[len(f)-1])})
	}
	return all, nil
}

// header reads names with a value or several. They go into requests as they are, so what
// HTTP does not allow is refused here.
func header(table map[string]any) (http.Header, error) {
	h := http.Header{}
	for name, v := range table {
		values, err := texts(v)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		if !httpguts.ValidHeaderFieldName(name) {
			return nil, fmt.Errorf("%q is not the name of a header", name)
		}
		for _, value := range values {
			if !httpguts.ValidHeaderFieldValue(value) {
				return nil, fmt.Errorf("%s: the value has characters that a header cannot have", name)
			}
			h.Add(name, value)
		}
	}
	return h, nil
}

// texts reads a string or a list of them.
func texts(v any) ([]string, error) {
	switch v := v.(type) {
	case nil:
		return nil, nil
	case string:
		return []string{v}, nil
	case []any:
		all := make([]string, len(v))
		for i, item := range v {
			s, ok := item.(string)
			if !ok {
				return nil, fmt.Errorf("%v is not a string", item)
			}
			all[i] = s
		}
		return all, nil
	}
	return nil, fmt.Errorf("%v is neither a string nor a list of strings", v)
}

func below(dir, p string) string {
	if filepath.IsAbs(p) {
		return p
	}
	return filepath.Join(dir, p)
}

// orderOfHosts lists the keys of host in the order of a valid file: decoding into a map
// loses that, and the order is the one in which they are asked.
func orderOfHosts(data []byte, known map[string]hostTable) []string {
	var order []string
	note := func(key []string) {
		if len(key) > 1 && key[0] == "host" && !slices.Contains(order, key[1]) {
			order = append(order, key[1])
		}
	}
	var p unstable.Parser
	p.Reset(data)
	var section []string
	for p.NextExpression() {
		var key []string
		for parts := p.Expression().Key(); parts.Next(); {
			key = append(key, string(parts.Node().Data))
		}
		switch p.Expression().Kind {
		case unstable.Table:
			section = key
			note(key)
		case unstable.KeyValue:
			note(slices.Concat(section, key))
		}
	}
	// Those in an inline table (host = {…}) have no order.
	for _, name := range slices.Sorted(maps.Keys(known)) {
		note([]string{"host", name})
	}
	return order
}
