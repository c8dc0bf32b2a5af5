package registry

import (
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"testing"
)

// A registry that names another realm each time is not remembered without bounds.
func TestRealmsAreFew(t *testing.T) {
	s := &tokenService{host: "reg.example", trusted: []string{"auth.example"}}
	changed := 0
	for i := range 100 {
		for _, query := range []string{"", "?scope=a", "?scope=b"} {
			h := http.Header{"Www-Authenticate": {fmt.Sprintf(`Bearer realm="https://auth.example/%d%s"`, i, query)}}
			s.redirect(h, &url.URL{Scheme: "https", Host: "reg.example"})
			if strings.Contains(h.Get("Www-Authenticate"), "https://reg.example"+tokenPath) && strings.HasSuffix(h.Get("Www-Authenticate"), query+`"`) {
				changed++
			}
		}
	}
	if len(s.realms) != maxRealms || changed != 3*maxRealms {
		t.Errorf("%d realms are remembered, and %d challenges changed", len(s.realms), changed)
	}
}

func TestTokenServiceIsNoWayAroundHTTPS(t *testing.T) {
	s := &tokenService{host: "reg.example", trusted: []string{"auth.example"}}
	for realm, changed := range map[string]bool{
		"https://auth.example/t":      true,
		"https://AUTH.example/t":      true,
		"http://auth.example/t":       false,
		"https://u:p@auth.example/t":  false,
		"https://auth.example:8443/t": false,
		"https://other.example/t":     false,
		"ftp://auth.example/t":        false,
		"%":                           false,
	} {
		h := http.Header{"Www-Authenticate": {`Bearer service="s",realm="` + realm + `"`}}
		s.redirect(h, &url.URL{Scheme: "https", Host: "reg.example"})
		if got := strings.Contains(h.Get("Www-Authenticate"), `realm="https://reg.example`+tokenPath); got != changed {
			t.Errorf("%s: %s", realm, h.Get("Www-Authenticate"))
		}
	}
}
