package apiserver

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/server/options/encryptionconfig"
	encryptionreload "k8s.io/apiserver/pkg/server/options/encryptionconfig/controller"
	serverstorage "k8s.io/apiserver/pkg/server/storage"
	"k8s.io/apiserver/pkg/storage/storagebackend"
	"k8s.io/apiserver/pkg/storage/value"
	"k8s.io/apiserver/pkg/storage/value/encrypt/identity"

	"github.com/coracle-project/coracle/cluster/health"
)

const encryptionFlag = "--encryption-provider-config"

// CheckEncryption says what is wrong with a file for [Options].EncryptionConfig, and on which line.
func CheckEncryption(path string) error {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel() // of connections to KMS plugins
	_, err := loadEncryption(ctx, path)
	return err
}

func loadEncryption(ctx context.Context, path string) (*encryptionconfig.EncryptionConfiguration, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", encryptionFlag, err)
	}
	const reload = true
	config, err := encryptionconfig.LoadEncryptionConfig(ctx, path, reload, "")
	if err != nil {
		return nil, inFile(encryptionFlag, path, data, err)
	}
	return config, nil
}

// encryption is what objects are encrypted with before they are stored, by upstream's rules.
// Changes of its file take effect within a minute; a file that is no good is logged, and what was
// read before stays in force.
type encryption struct {
	*encryptionconfig.DynamicTransformers
	stop    context.CancelFunc
	running sync.WaitGroup
}

func openEncryption(ctx context.Context, path string, part *health.Part, log *slog.Logger) (*encryption, error) {
	e := &encryption{}
	ctx, e.stop = context.WithCancel(context.WithoutCancel(ctx)) // requests that are answered last still need it
	first, closeFirst := context.WithCancel(ctx)
	config, err := loadEncryption(first, path)
	if err != nil {
		closeFirst()
		e.stop()
		return nil, err
	}
	e.DynamicTransformers = encryptionconfig.NewDynamicTransformers(config.Transformers, config.HealthChecks[0], closeFirst,
		config.KMSCloseGracePeriod)
	reloader := encryptionreload.NewDynamicEncryptionConfiguration("encryption-provider-config", path, e.DynamicTransformers,
		config.EncryptionFileContentHash, "")
	e.running.Go(func() { reloader.Run(ctx) })
	e.running.Go(func() { tellChanges(ctx, path, config.EncryptionFileContentHash, part, log) })
	return e, nil
}

// tellChanges tells of changes of the file until ctx ends. Objects that are stored stay as they
// are: only an operator knows when all API servers of an etcd have read the file, and each object
// can be written again.
func tellChanges(ctx context.Context, path, seen string, part *health.Part, log *slog.Logger) {
	said := "objects are encrypted as " + path + " says"
	part.Works(said)
	look := time.NewTicker(encryptionreload.EncryptionConfigFileChangePollDuration)
	defer look.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-look.C:
		}
		now, err := encryptionconfig.GetEncryptionConfigHash(path)
		if err != nil {
			now = err.Error()
		}
		if now == seen {
			continue
		}
		seen = now
		if err := CheckEncryption(path); err != nil {
			part.Works(said, fmt.Sprintf("%v: what was read before stays in force", err))
			continue
		}
		log.Info("how objects are encrypted was changed", "file", path)
		part.Works(said, fmt.Sprintf("%s was changed at %s: what was stored before is encrypted as it said then. After a minute, write it again "+
			"('kubectl get secrets -A -o json | kubectl replace -f -'); docs/kubernetes.md says how old values leave the disk. "+
			"This stays until the cluster process is started again", path, time.Now().Format(time.DateTime)))
	}
}

func (e *encryption) close() {
	e.stop()
	e.running.Wait()
}

// encryptedFactory adds encryption to the storage of built-in resources. Some of upstream's
// registries ask it and not the store.
type encryptedFactory struct {
	serverstorage.StorageFactory
	store *store
}

func (f encryptedFactory) NewConfig(resource schema.GroupResource, example runtime.Object) (*storagebackend.ConfigForResource, error) {
	config, err := f.StorageFactory.NewConfig(resource, example)
	if err == nil {
		config.Transformer = f.store.transformer(resource)
	}
	return config, err
}

// transformer is what objects of a resource go through on their way to etcd and back.
func (s *store) transformer(resource schema.GroupResource) value.Transformer {
	if s.encryption == nil {
		return identity.NewEncryptCheckTransformer()
	}
	return s.encryption.TransformerForResource(resource)
}
