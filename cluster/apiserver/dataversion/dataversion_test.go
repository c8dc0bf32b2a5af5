package dataversion

import (
	"errors"
	"testing"
)

func TestCanRead(t *testing.T) {
	for _, test := range []struct {
		name       string
		own, wrote Versions
		newer      bool
	}{
		{"the same", Versions{"v1.2.3", "1.36"}, Versions{"v1.2.3", "1.36"}, false},
		{"a newer patch", Versions{"v1.2.3", "1.36"}, Versions{"v1.2.9", "1.36"}, false},
		{"a newer minor of Coracle", Versions{"v1.2.3", "1.36"}, Versions{"v1.3.0", "1.36"}, true},
		{"a newer major of Coracle", Versions{"v1.2.3", "1.36"}, Versions{"v2.0.0", "1.36"}, true},
		{"a newer Kubernetes", Versions{"v1.2.3", "1.36"}, Versions{"v1.2.3", "1.37"}, true},
		{"two digits", Versions{"v1.9.0", "1.36"}, Versions{"v1.10.0", "1.36"}, true},
		{"older", Versions{"v1.2.3", "1.36"}, Versions{"v1.1.9", "1.35"}, false},
		{"development build", Versions{"v0.0.0-dev", "1.36"}, Versions{"v1.3.0", "1.36"}, false},
		{"of a development build", Versions{"v1.2.3", "1.36"}, Versions{"v0.0.0-dev", "1.36"}, false},
		{"of a release that did not say", Versions{"v1.2.3", "1.36"}, Versions{}, false},
		{"garbage", Versions{"v1.2.3", "1.36"}, Versions{"next", "later"}, false},
	} {
		t.Run(test.name, func(t *testing.T) {
			if err := test.own.CanRead(test.wrote); errors.Is(err, ErrNewer) != test.newer || err != nil && !test.newer {
				t.Errorf("%+v reads %+v: %v", test.own, test.wrote, err)
			}
		})
	}
}
