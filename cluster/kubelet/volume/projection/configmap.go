package projection

import (
	"context"
	"fmt"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/coracle-project/coracle/cluster/kubelet/volume/watched"
)

func addConfigMap(ctx context.Context, pod *v1.Pod, held *Held, files map[string]file, name string,
	items []v1.KeyToPath, mode *int32, optional *bool,
) error {
	obj, err := held.ref(watched.ConfigMap, pod.Namespace, name).Get(ctx)
	if err != nil && !mayMiss(err, optional) {
		return err
	}
	values := map[string][]byte{}
	if err == nil {
		cm := obj.(*v1.ConfigMap)
		for k, v := range cm.BinaryData {
			values[k] = v
		}
		for k, v := range cm.Data {
			values[k] = []byte(v)
		}
	}
	return addKeys(files, values, items, mode, optional, "configmap references non-existent config key")
}

func addSecret(ctx context.Context, pod *v1.Pod, held *Held, files map[string]file, name string,
	items []v1.KeyToPath, mode *int32, optional *bool,
) error {
	obj, err := held.ref(watched.Secret, pod.Namespace, name).Get(ctx)
	if err != nil && !mayMiss(err, optional) {
		return err
	}
	var values map[string][]byte
	if err == nil {
		values = obj.(*v1.Secret).Data
	}
	return addKeys(files, values, items, mode, optional, "references non-existent secret key")
}

// mayMiss says whether the object's absence is allowed.
func mayMiss(err error, optional *bool) bool {
	return apierrors.IsNotFound(err) && optional != nil && *optional
}

// addKeys adds an object's values: all of them by their keys, or those that items name.
func addKeys(files map[string]file, values map[string][]byte, items []v1.KeyToPath, mode *int32, optional *bool, missing string) error {
	if mode == nil {
		return errNoDefaultMode
	}
	if len(items) == 0 {
		for key, data := range values {
			files[key] = file{data: data, mode: *mode}
		}
		return nil
	}
	for _, item := range items {
		data, ok := values[item.Key]
		switch {
		case !ok && optional != nil && *optional:
			continue
		case !ok:
			return fmt.Errorf("%s: %s", missing, item.Key)
		}
		f := file{data: data, mode: *mode}
		if item.Mode != nil {
			f.mode = *item.Mode
		}
		files[item.Path] = f
	}
	return nil
}
