package engine

import (
	"reflect"
	"testing"

	"github.com/opencontainers/cgroups"
	"github.com/opencontainers/cgroups/manager"
)

// The quick way of finding cgroups has to find what the library finds.
func TestHierarchiesAreTheLibrarys(t *testing.T) {
	if cgroups.IsCgroup2UnifiedMode() {
		t.Log("there are no hierarchies of version 1 here")
		return
	}
	if usual, ok := usualHierarchies(); ok {
		byLibrary, err := lookUpHierarchies()
		if err != nil {
			t.Fatal(err)
		}
		for i := range byLibrary {
			if byLibrary[i].own == "" {
				byLibrary[i].own = "/"
			}
		}
		if !reflect.DeepEqual(usual, byLibrary) {
			t.Errorf("usual places: %+v\nby library:    %+v", usual, byLibrary)
		}
	}
	for name, config := range map[string]cgroups.Cgroup{
		"absolute": {Path: "/a/b"},
		"relative": {Path: "a/b"},
		"by name":  {Name: "a"},
	} {
		t.Run(name, func(t *testing.T) {
			config.Resources = &cgroups.Resources{}
			ours, err := new(hierarchies).newManager(&config)
			if err != nil {
				t.Fatal(err)
			}
			theirs, err := manager.New(&config)
			if err != nil {
				t.Fatal(err)
			}
			if !reflect.DeepEqual(ours.GetPaths(), theirs.GetPaths()) {
				t.Errorf("ours:         %v\nthe library's: %v", ours.GetPaths(), theirs.GetPaths())
			}
		})
	}
}
