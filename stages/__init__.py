from selfimprove.pipeline.forward import forward

forward()
