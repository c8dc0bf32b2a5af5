package cri

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/coracle-project/coracle/cri/convert"
)

func TestConfigsSurviveTheWayBack(t *testing.T) {
	p := convertedPodConfig()
	againPod, err := convert.Pod(convert.PodBack(&p), p.RuntimeHandler)
	if diff := cmp.Diff(p, againPod); diff != "" || err != nil {
		t.Error(err, diff)
	}
	c := convertedContainerConfig()
	againContainer, err := convert.Container(convert.ContainerBack(&c))
	if diff := cmp.Diff(c, againContainer); diff != "" || err != nil {
		t.Error(err, diff)
	}
}

// Regression: verbose answers showed the names of Go's fields.
func TestInfoHasTheNamesOfCRI(t *testing.T) {
	p, c := aPod(), aContainer()
	for _, i := range []struct {
		info any
		want []string
	}{
		{
			podInfo{Config: convert.PodBack(&p.Config)},
			[]string{`"config":{"metadata":{"name":"web","uid":"u1","namespace":"default"`, `"log_directory":`, `"port_mappings":`},
		},
		{(&service{}).containerInfo(c), []string{
			`"config":{"metadata":{"name":"srv","attempt":3}`, `"log_path":"srv/0.log"`,
			`"user_specified_image":`,
		}},
	} {
		text, err := json.Marshal(i.info)
		if err != nil {
			t.Fatal(err)
		}
		for _, want := range i.want {
			if !strings.Contains(string(text), want) {
				t.Errorf("no %s in %s", want, text)
			}
		}
	}
}
